"""Builds training lists: samples lists from the candidate pools of a source; a teacher assigns their relevance.

Sources are requests with their candidates, and collections with judged queries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import numpy as np

from rerank.collections import Collection, open_collection
from rerank.commands.progress import with_progress
from rerank.commands.run import console
from rerank.errors import CollectionError, ConfigError
from rerank.models.encoder import DEFAULT_ENCODER, Encoder
from rerank.readers.candidates import CandidateList, read_requests
from rerank.readers.qrels import grades_by_query, read_qrels
from rerank.types import Passage, Query
from rerank.util.files import check_plain_name
from rerank_training.lists.sampling import Pool, make_pool, sample_passages
from rerank_training.lists.settings import BuildListsSettings, TeacherName
from rerank_training.lists.teachers import Teacher, open_teacher
from rerank_training.lists.training_list import Grades, TrainingList, with_request_ids, write_lists
from rerank_training.lists.vector_table import VectorTable, encode_texts

#: Lines of the summary, before their number.
_LEFT_OUT = "candidates left out, without a text or with that of another one"
_NOT_JUDGED = "passages in the lists that nobody judged, which count as not relevant"


@dataclass(frozen=True, slots=True)
class Source:
    """Candidate pools that are created one by one, and the number of their queries."""

    pools: Iterable[Pool]
    queries: int


def build(settings: BuildListsSettings) -> None:
    """Writes the training lists of one source to `settings.out`, and the held-out ones to `settings.held_out`.

    Raises:
        CollectionError: the source cannot be read, or no list can be made from it.
        ConfigError: an output file exists, or the encoder or the reranker cannot be loaded.
    """
    paths = [settings.out, settings.held_out] if settings.held_out_share else [settings.out]
    for path in paths:
        check_plain_name(path, "--out")
        if path.exists():
            raise ConfigError(f"{path} exists already; remove it first or choose another --out")
    encoder = Encoder(settings.encoder or DEFAULT_ENCODER) if settings.needs_vectors else None
    source = open_source(settings, encoder)
    counts: Counter[str] = Counter()
    with open_teacher(settings.teacher, settings.config, settings.model) as teacher:
        parts = _build_lists(source, teacher, settings, counts)
    for path, lists in zip(paths, parts, strict=False):
        console.print(f"{path}: {write_lists(path, lists):,} lists")
    console.print(f"made from {source.queries:,} queries, with the teacher {settings.teacher}")
    for line in _lines(counts):
        console.print(line)


def _build_list(
    pool: Pool, teacher: Teacher, settings: BuildListsSettings, random: Random, number: int
) -> TrainingList:
    """Samples one list and lets the teacher assign its relevance.

    Args:
        number: number of the list among the lists of its query, from 1; from 2 on it is appended to the query_id.

    Raises:
        CollectionError: the list has fewer than two passages, or all are equally relevant.
    """
    passages = sample_passages(pool, settings.sizes, random, settings.order)
    if len(passages) < 2:
        raise CollectionError("fewer than two passages")
    relevance = teacher(pool, passages)
    if len(set(relevance)) < 2:
        raise CollectionError("all passages equally relevant")
    query = pool.query if number == 1 else replace(pool.query, query_id=f"{pool.query.query_id}#{number}")
    return TrainingList(query, passages, relevance)


def _build_lists(
    source: Source, teacher: Teacher, settings: BuildListsSettings, counts: Counter[str]
) -> tuple[list[TrainingList], list[TrainingList]]:
    """The training lists and the held-out lists of a source; lists of the same query stay together.

    Args:
        counts: line of the summary → number, to which skipped lists, left out candidates and unjudged passages are
            added.

    Raises:
        CollectionError: no list can be made from the source, from the held-out queries, or from the other queries.
    """
    held_out = _held_out_queries(source.queries, settings)
    parts: tuple[list[TrainingList], list[TrainingList]] = ([], [])
    for position, pool in enumerate(with_progress(source.pools, "queries", source.queries, console)):
        counts[_LEFT_OUT] += pool.left_out
        random = Random(f"{settings.seed}:{pool.query.query_id}")  # so that a list does not depend on earlier queries
        for number in range(1, settings.lists_per_query + 1):
            try:
                item = _build_list(pool, teacher, settings, random, number)
                parts[position in held_out].append(item)
            except CollectionError as error:
                counts[f"skipped lists, {error}"] += 1
                continue
            if settings.teacher is TeacherName.QRELS:
                counts[_NOT_JUDGED] += sum(passage.doc_id not in pool.grades for passage in item.passages)
    if not any(parts):
        reasons = "; ".join(_lines(counts)) or "give some"
        raise CollectionError(f"no list can be made of {source.queries} queries; {reasons}")
    if held_out and not all(parts):
        raise CollectionError(
            f"--held-out-share {settings.held_out_share} leaves {len(parts[0])} lists to train on and {len(parts[1])} "
            f"held out, of {source.queries} queries; give more queries or another share"
        )
    return parts


def _held_out_queries(queries: int, settings: BuildListsSettings) -> set[int]:
    """Positions of a random sample of the queries: none without `held_out_share`, otherwise at least one."""
    if not settings.held_out_share or not queries:
        return set()
    count = max(1, round(settings.held_out_share * queries))
    return set(Random(f"{settings.seed}:held-out").sample(range(queries), count))


def _lines(counts: Counter[str]) -> list[str]:
    return [f"{what}: {count:,}" for what, count in counts.items() if count]


def open_source(settings: BuildListsSettings, encoder: Encoder | None) -> Source:
    """The source that the settings name.

    Args:
        encoder: computes the vectors of queries and passages; needed for a collection.

    Raises:
        CollectionError: a file cannot be read, or none of the queries is judged.
    """
    if settings.requests:
        return _from_requests(settings.requests, settings, encoder)
    if encoder is None:
        raise ValueError("a collection has no candidates without an encoder; this is a bug")
    return _from_collection(open_collection(settings.collection), settings, encoder)


def _from_requests(path: Path, settings: BuildListsSettings, encoder: Encoder | None) -> Source:
    """Pools of the first `depth` candidates of each request."""
    requests = read_requests(path)
    qrels = with_request_ids(read_qrels(settings.qrels), requests) if settings.qrels else []
    grades = grades_by_query(qrels)
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
            f"these requests, whose query_ids are like {examples[0]}; those of the judgements are like {examples[1]}"
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
        candidates = [
            replace(passage, vector=table([passage.text])[0]) if table and passage.text.strip() else passage
            for passage in request.candidates[: settings.depth]
        ]
        yield make_pool(query, candidates, grades.get(request.query.query_id, {}))


def _from_collection(collection: Collection, settings: BuildListsSettings, encoder: Encoder) -> Source:
    """Pools of each judged query: its relevant passages, and the `depth` passages with the highest cosine."""
    grades, queries = grades_by_query(collection.qrels(settings.split)), collection.queries()
    judged = [query for query in queries if query.query_id in grades]
    if not judged:
        raise CollectionError(
            f"none of the {len(queries)} queries of {settings.collection} is judged in "
            f"qrels/{settings.split}.tsv; give another --split"
        )
    every = list(collection.passages())
    passages = [passage for passage in every if passage.text.strip()]
    if blank := len(every) - len(passages):
        console.print(f"{blank:,} of {len(every):,} passages have no text; no list has them")
    return Source(_neighbour_pools(judged, grades, passages, settings, encoder), len(judged))


def _neighbour_pools(
    queries: Sequence[Query],
    grades: Grades,
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
