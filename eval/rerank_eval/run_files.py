"""Result files of a system: run.trec with its rankings, measures.json with their measures."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from rerank.errors import ConfigError
from rerank.files import atomic_file
from rerank_eval.measures import Metrics, Run


def write_run(out: Path, run: Run, metrics: Metrics, settings: Mapping[str, object], notes: Sequence[str] = ()) -> None:
    """Writes run.trec and measures.json into the folder `out`.

    Raises:
        ConfigError: the folder cannot be written.
    """
    measures = {
        "settings": dict(settings),
        "mean": metrics.mean,
        "per_query": metrics.per_query,
        "missing": list(metrics.missing),
        "notes": list(notes),
    }
    write_text(out / "run.trec", trec_run(run, tag="rerank"))
    write_text(out / "measures.json", json.dumps(measures, indent=2) + "\n")


def trec_run(run: Run, tag: str) -> str:
    """A run in TREC form: lines of query_id, Q0, doc_id, rank, score, tag.

    Scores are written with all their digits, so that different scores never become equal.
    """
    return "".join(
        f"{query_id} Q0 {doc.doc_id} {rank} {doc.score!r} {tag}\n"
        for query_id, docs in run.items()
        for rank, doc in enumerate(docs, start=1)
    )


def write_text(path: Path, text: str) -> None:
    """Replaces a file atomically and creates its folder. Raises: ConfigError when it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error}; choose another --out") from error
