"""Sources of training lists: requests with their candidates, or a collection with judged queries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from rerank.collections import Collection, open_collection
from rerank.commands.run import console
from rerank.errors import CollectionError
from rerank.models.encoder import Encoder
from rerank.readers.qrels import grades_by_query, read_qrels
from rerank.readers.requests import CandidateList, read_requests
from rerank.types import Passage, Query
from rerank_training.lists.files import Grades
from rerank_training.lists.sampling import Pool, make_pool
from rerank_training.lists.settings import BuildListsSettings, TeacherName
from rerank_training.lists.vector_table import VectorTable, encode_texts


@dataclass(frozen=True, slots=True)
class Source:
    """Candidate pools of a number of queries, created one by one."""

    pools: Iterable[Pool]
    queries: int


def open_source(settings: BuildListsSettings, encoder: Encoder | None) -> Source:
    """The source that the settings name.

    Args:
        encoder: gives queries and passages vectors; a collection needs it.

    Raises:
        CollectionError: a file cannot be read, or none of the queries is judged.
    """
    if settings.requests:
        return _from_requests(settings.requests, settings, encoder)
    if encoder is None:
        raise ValueError("a collection has no candidates without an encoder; this is a bug")
    return _from_collection(open_collection(settings.collection), settings, encoder)


def _from_requests(path: Path, settings: BuildListsSettings, encoder: Encoder | None) -> Source:
    """For each request, its first `depth` candidates that have a text."""
    requests = read_requests(path)
    grades = grades_by_query(read_qrels(settings.qrels)) if settings.qrels else {}
    if settings.qrels and settings.teacher is TeacherName.QRELS:
        requests = _judged(requests, grades, settings.qrels)
    return Source(_request_pools(requests, grades, settings, encoder), len(requests))


def _judged(requests: list[CandidateList], grades: Grades, qrels: Path) -> list[CandidateList]:
    """The requests whose query is judged. Raises: CollectionError when there is none."""
    judged = [request for request in requests if request.query.query_id in grades]
    if not judged:
        examples = [repr(next(iter(ids), "")) for ids in ((r.query.query_id for r in requests), grades)]
        raise CollectionError(
            f"none of the {len(requests)} queries is judged in {qrels} ({len(grades)} queries); give the judgements of "
            f"these requests: their query_ids are like {examples[0]}, the judgements' like {examples[1]}"
        )
    if len(judged) < len(requests):
        console.print(f"{len(judged):,} of {len(requests):,} queries are judged in {qrels}; the others give no lists")
    return judged


def _request_pools(
    requests: Sequence[CandidateList], grades: Grades, settings: BuildListsSettings, encoder: Encoder | None
) -> Iterator[Pool]:
    texts = [passage.text for request in requests for passage in request.candidates[: settings.depth]]
    table = VectorTable(encoder.encode_passages, filter(str.strip, texts), console) if encoder else None
    for request in requests:
        query = replace(request.query, query_id=f"{settings.prefix}/{request.query.query_id}")
        if encoder:
            query = replace(query, vector=encoder.encode_queries([query.text])[0])
        shown = [passage for passage in request.candidates[: settings.depth] if passage.text.strip()]
        candidates = [replace(passage, vector=table([passage.text])[0]) if table else passage for passage in shown]
        yield make_pool(query, candidates, grades.get(request.query.query_id, {}))


def _from_collection(collection: Collection, settings: BuildListsSettings, encoder: Encoder) -> Source:
    """For each judged query, the `depth` nearest passages by the encoder's cosine, and all relevant ones."""
    grades, queries = grades_by_query(collection.qrels(settings.split)), collection.queries()
    judged = [query for query in queries if query.query_id in grades]
    if not judged:
        raise CollectionError(
            f"none of the {len(queries)} queries of {settings.collection} is judged in "
            f"qrels/{settings.split}.tsv; give another --split"
        )
    passages = [passage for passage in collection.passages() if passage.text.strip()]
    return Source(_neighbour_pools(judged, grades, passages, settings, encoder), len(judged))


def _neighbour_pools(
    queries: Sequence[Query],
    grades: Mapping[str, Mapping[str, int]],
    passages: Sequence[Passage],
    settings: BuildListsSettings,
    encoder: Encoder,
) -> Iterator[Pool]:
    vectors = encode_texts(encoder.encode_passages, [passage.text for passage in passages], console)  # (N, D)
    rows = {passage.doc_id: row for row, passage in enumerate(passages)}
    for query in queries:
        of_query = grades[query.query_id]
        vector = encoder.encode_queries([query.text])[0]
        cosines = vectors @ vector
        relevant = [rows[doc_id] for doc_id, grade in of_query.items() if grade > 0 and doc_id in rows]
        found = {*np.argsort(-cosines, kind="stable")[: settings.depth].tolist(), *relevant}
        candidates = [
            replace(passages[row], score=float(cosines[row]), vector=vectors[row])
            for row in sorted(found, key=lambda row: (-cosines[row], row))
        ]
        named = replace(query, query_id=f"{settings.prefix}/{query.query_id}", vector=vector)
        yield make_pool(named, candidates, of_query)
