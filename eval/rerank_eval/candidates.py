"""Lists of candidates from TREC run files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rerank.errors import CollectionError
from rerank.readers.requests import CandidateList
from rerank.readers.runs import read_run
from rerank.readers.trec_ids import known_ids, to_column
from rerank.types import Passage, Query
from rerank_eval.datasets import Dataset


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
    run = _read_run(path, dataset)
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


def _read_run(path: Path, dataset: Dataset) -> dict[str, dict[str, float]]:
    """Scores by query_id and doc_id, with the ids of the dataset."""
    scores = read_run(path)
    query_ids = known_ids(scores, dataset.queries)
    spaced = {doc_id for row in scores.values() for doc_id in row if to_column(doc_id) != doc_id}
    doc_ids = known_ids(spaced, dataset.find(spaced | set(map(to_column, spaced)))) if spaced else {}
    return {query_ids[q]: {doc_ids.get(d, d): score for d, score in row.items()} for q, row in scores.items()}


def _request(query: Query, docs: Sequence[tuple[str, float]], passages: Mapping[str, Passage]) -> CandidateList:
    found = [(passages[doc_id], score) for doc_id, score in docs]
    return CandidateList(query, tuple(replace(passage, score=score) for passage, score in found))
