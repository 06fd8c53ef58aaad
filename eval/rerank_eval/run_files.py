"""Files with the results of a system: run.trec has its rankings, measures.json their measures."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from rerank.engine.scores import strictly_decreasing
from rerank.readers.trec_ids import to_column
from rerank.types import ScoredDoc
from rerank.util.files import atomic_file, report_disk_errors
from rerank_eval.measures import MetricValues, Run

#: The way out for a user whose results cannot be written.
WAY_OUT = "free disk space and give the same command again, which goes on where it stopped, or choose another --out"


def write_run(
    out: Path, run: Run, metrics: MetricValues, settings: Mapping[str, object], notes: Sequence[str] = ()
) -> None:
    """Writes run.trec and measures.json into the folder `out`.

    Raises:
        ConfigError: the folder cannot be written.
    """
    measures = {
        "settings": dict(settings),
        "mean": metrics.mean,
        "per_query": metrics.per_query,
        "notes": [*notes, *_notes_on_ids(run)],
    }
    write_text(out / "run.trec", trec_run(run, tag="rerank"))
    write_text(out / "measures.json", json.dumps(measures, indent=2, default=str) + "\n")


def trec_run(run: Run, tag: str) -> str:
    """A run in TREC form: lines of query_id, Q0, doc_id, rank, score, tag.

    The written scores decrease strictly in float32, as which trec_eval reads them; equal scores would lose the order.
    White space in an id, which would separate columns, is percent-encoded: "my file.pdf" becomes my%20file.pdf.
    """
    return "".join(
        f"{to_column(query_id)} Q0 {to_column(doc.doc_id)} {rank} {score} {tag}\n"
        for query_id, docs in run.items()
        for rank, (doc, score) in enumerate(zip(docs, _written_scores(docs), strict=True), start=1)
    )


def _notes_on_ids(run: Run) -> list[str]:
    """One note if ids have white space, with the first of them."""
    ids = (name for query_id, docs in run.items() for name in (query_id, *(doc.doc_id for doc in docs)))
    changed = next((name for name in ids if to_column(name) != name), None)
    if changed is None:
        return []
    return [f"white space in ids is percent-encoded in run.trec, whose columns it separates: {to_column(changed)}"]


def _written_scores(docs: Sequence[ScoredDoc]) -> list[str]:
    """The scores, which decrease strictly in float32 as well; ranks replace scores that float32 cannot represent."""
    with np.errstate(over="ignore"):
        scores = strictly_decreasing([doc.score for doc in docs])
        if not np.isfinite(np.array(scores, dtype=np.float32)).all():
            return [repr(float(len(docs) - rank)) for rank in range(len(docs))]
    return [repr(score) for score in scores]


def write_text(path: Path, text: str) -> None:
    """Replaces a file atomically and creates its folder. Raises: ConfigError when it cannot be written."""
    with report_disk_errors(path, WAY_OUT):
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
