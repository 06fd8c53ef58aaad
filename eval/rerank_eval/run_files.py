"""Files of rankings: TREC runs are read as lists of candidates, and run.trec and measures.json have a system's results.

The lines of a run are query_id, Q0, doc_id, rank, score, tag.
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np

from rerank.engine.scores import strictly_decreasing
from rerank.errors import CollectionError
from rerank.readers.candidates import CandidateList
from rerank.readers.lines import parsed_lines
from rerank.readers.qrels import columns_of, known_ids, to_column
from rerank.readers.rows import BadRow, finite_number
from rerank.types import Passage, Query, ScoredDoc
from rerank.util.files import atomic_file, report_disk_errors
from rerank_eval.datasets import Dataset
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
    write_result(out / "run.trec", trec_run(run, tag="rerank"))
    write_result(out / "measures.json", json.dumps(measures, indent=2, default=str) + "\n")


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


def write_result(path: Path, text: str) -> Path | None:
    """Writes a file of results. One with other content is kept: report.md becomes report-1.md.

    Returns:
        Where the former content is now; None if there was none, or the same.

    Raises:
        ConfigError: the file cannot be written.
    """
    former = None
    with report_disk_errors(path, WAY_OUT):
        if path.is_file() and path.read_bytes() != text.encode():
            names = (path.with_name(f"{path.stem}-{number}{path.suffix}") for number in count(1))
            former = next(name for name in names if not name.exists())
            path.rename(former)
    write_text(path, text)
    return former


def write_text(path: Path, text: str) -> None:
    """Replaces a file atomically and creates its folder. Raises: ConfigError when it cannot be written."""
    with report_disk_errors(path, WAY_OUT):
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as temporary:
            temporary.write_text(text, encoding="utf-8")


def read_run(path: Path) -> dict[str, dict[str, float]]:
    """Reads a run: query_id → doc_id → score. Ids are read as in judgements, see `read_qrels`.

    Raises:
        CollectionError: the file or a line of it cannot be read, or two lines have the same passage of a query; the
            message names the line.
    """
    scores: dict[str, dict[str, float]] = {}
    for number, (query_id, doc_id, score) in parsed_lines(path, _row):
        docs = scores.setdefault(query_id, {})
        if doc_id in docs:
            rows = parsed_lines(path, _row)
            first = next(line for line, row in rows if row[:2] == (query_id, doc_id))
            raise CollectionError(
                f"{path}:{number} has the passage {doc_id!r} of query {query_id!r}, which line {first} has; keep one"
            )
        docs[doc_id] = score
    return scores


def _row(line: str) -> tuple[str, str, float]:
    columns = columns_of(line, 6)
    if len(columns) != 6:
        raise BadRow(f"has {len(columns)} columns; expected query_id, Q0, doc_id, rank, score and tag")
    query_id, _, doc_id, _, score, _ = columns
    if not query_id or not doc_id:
        raise BadRow(f"has the query_id {reprlib.repr(query_id)} and the doc_id {reprlib.repr(doc_id)}; give both")
    return query_id, doc_id, finite_number(score, "score")


def candidates_of_run(path: Path, dataset: Dataset, depth: int = 0) -> tuple[list[CandidateList], list[str]]:
    """The first `depth` candidates (0: all) of each judged query in a TREC run, with their texts.

    They are sorted as trec_eval sorts them, by score and equal scores by descending doc_id; the rank column is ignored.
    Ids may have their white space percent-encoded, as `trec_run` writes it.

    Returns:
        The requests, and the query_ids of the run that have no judgements.

    Raises:
        CollectionError: the file is not a TREC run, holds none of the judged queries, or names a passage that is not
            in the collection.
    """
    run = _with_known_ids(read_run(path), dataset)
    candidates = {
        query_id: sorted(run[query_id].items(), key=lambda doc: (doc[1], doc[0]), reverse=True)[: depth or None]
        for query_id in dataset.queries
        if query_id in run
    }
    if not candidates:
        raise CollectionError(
            f"{path} holds none of the {len(dataset.queries)} judged queries of {dataset.name}, but {len(run)} others; "
            "give the run of these queries"
        )
    passages = dataset.passages({doc_id for docs in candidates.values() for doc_id, _ in docs})
    requests = [_request(dataset.queries[query_id], docs, passages) for query_id, docs in candidates.items()]
    return requests, sorted(run.keys() - {qrel.query_id for qrel in dataset.qrels})


def _with_known_ids(scores: Mapping[str, Mapping[str, float]], dataset: Dataset) -> dict[str, dict[str, float]]:
    """Scores by query_id and doc_id, with the ids of the dataset."""
    query_ids = known_ids(scores, dataset.queries)
    spaced = {doc_id for row in scores.values() for doc_id in row if to_column(doc_id) != doc_id}
    doc_ids = known_ids(spaced, dataset.find(spaced | set(map(to_column, spaced)))) if spaced else {}
    return {query_ids[q]: {doc_ids.get(d, d): score for d, score in row.items()} for q, row in scores.items()}


def _request(query: Query, docs: Sequence[tuple[str, float]], passages: Mapping[str, Passage]) -> CandidateList:
    found = [(passages[doc_id], score) for doc_id, score in docs]
    return CandidateList(query, tuple(replace(passage, score=score) for passage, score in found))
