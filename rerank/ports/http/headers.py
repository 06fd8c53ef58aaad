"""Headers of answers: values that every server and proxy takes, the work that was done, and warnings."""

from __future__ import annotations

import json

from rerank.errors import reason_of
from rerank.types import Trace

#: Proxies refuse answers with longer headers.
_MAX_CHARS = 2000


def header_value(text: str) -> str:
    """A text as the value of a header: ASCII without control characters, not too long, and no space at its ends."""
    return json.dumps(text)[1:-1].replace("\x7f", r"\u007f")[:_MAX_CHARS].strip()


def execution_headers(trace: Trace) -> dict[str, str]:
    """Headers about the model and its work. The times, in milliseconds, have TEI's names."""
    failure = {"x-rerank-failure": reason_of(trace.failure)} if trace.failure else {}
    return failure | {
        "x-rerank-model": trace.model,
        "x-rerank-strategy": trace.strategy,
        "x-rerank-completeness": trace.completeness.value,
        "x-total-time": f"{trace.total_ms:.0f}",
        "x-queue-time": f"{trace.queue_ms:.0f}",
        "x-tokenization-time": f"{trace.prepare_ms:.0f}",
        "x-inference-time": f"{trace.model_ms:.0f}",
    }


def warnings_of(trace: Trace) -> list[str]:
    """Warnings about a ranking: texts that were truncated or not read, and doubts about the model."""
    query = "the query was longer than the model can read and was truncated" if trace.query_truncated else ""
    cut = len(trace.truncated_doc_ids)
    documents = "1 document was" if cut == 1 else f"{cut} documents were"
    truncated = f"{documents} longer than the model can read and {documents.split()[-1]} truncated" if cut else ""
    return [note for note in (query, truncated, trace.reason, trace.model_warning) if note]
