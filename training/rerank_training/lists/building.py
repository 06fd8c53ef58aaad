"""Builds training lists: reads a source, samples lists from its pools, and lets a teacher assign the relevance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import TypeVar

from rerank.collections import beir
from rerank.commands.progress import with_progress
from rerank.commands.run import console
from rerank.errors import CollectionError, ConfigError
from rerank.models.encoder import DEFAULT_ENCODER, Encoder
from rerank.readers.qrels import grades_by_query, read_qrels
from rerank.readers.requests import Request, read_requests
from rerank.types import Passage, Query
from rerank_training.lists.encoding import encode_texts
from rerank_training.lists.files import Grades, write_split_lists
from rerank_training.lists.neighbours import CollectionQuery, neighbour_pools, relevant_only_pools, with_vectors
from rerank_training.lists.sampling import ListOrder, ListSampling, Pool, sample_passages, sliding_order
from rerank_training.lists.settings import BuildListsSettings, QuerySource
from rerank_training.lists.sources import (
    judged_queries,
    pseudo_queries,
    read_collection,
    read_medquad,
    request_collection,
    request_pools,
)
from rerank_training.lists.teachers import Teacher, open_teacher
from rerank_training.lists.training_list import TrainingList

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Source:
    """Candidate pools of a source, created one by one, and the collection that random negatives are drawn from."""

    pools: Iterable[Pool]
    queries: int
    passages: Sequence[Passage]


def build(settings: BuildListsSettings) -> None:
    """Writes the training lists of one source to `settings.out`, and the held-out ones to `settings.held_out`.

    Raises:
        CollectionError: the source cannot be read, or no list can be made of it.
        ConfigError: an output file exists, or the encoder or the reranker cannot be loaded.
    """
    paths = [settings.out, settings.held_out] if settings.held_out_share else [settings.out]
    for path in paths:
        if path.exists():
            raise ConfigError(f"{path} exists already; remove it first or choose another --out")
    encoder = Encoder(settings.encoder or DEFAULT_ENCODER) if settings.needs_vectors else None
    source = _open_source(settings, encoder)
    skipped: Counter[str] = Counter()
    with open_teacher(settings.teacher, settings.config, settings.model, settings.fusion_weight) as teacher:
        counts = write_split_lists(paths, _build_lists(source, teacher, settings, skipped))
    for path, count in zip(paths, counts, strict=True):
        console.print(f"{path}: {count:,} lists")
    console.print(f"made from {source.queries:,} queries, with the teacher {settings.teacher}")
    if skipped:
        console.print(_summary(skipped))


def build_list(
    pool: Pool, collection: Sequence[Passage], teacher: Teacher, sampling: ListSampling, random: Random, number: int = 1
) -> TrainingList:
    """Samples one list and lets the teacher assign its relevance.

    Args:
        number: distinguishes the lists of one query; from 2 on it is appended to the query_id.

    Raises:
        CollectionError: there are too few passages, or all are equally relevant.
    """
    passages = sample_passages(pool, collection, sampling, random)
    if len(passages) < 2:
        raise CollectionError("fewer than two passages")
    relevance = teacher(pool, passages)
    if len(set(relevance)) < 2:
        raise CollectionError("all passages equally relevant")
    item = TrainingList(_numbered(pool.query, number), passages, relevance)
    if sampling.order is ListOrder.SLIDING:
        return item.select(sliding_order(relevance, random))
    return item


def _build_lists(
    source: Source, teacher: Teacher, settings: BuildListsSettings, skipped: Counter[str]
) -> Iterator[tuple[int, TrainingList]]:
    """All lists of a source, each with 1 if it is held out and 0 if not; lists of the same query stay together.

    Lists that cannot be made are counted in `skipped` by reason.

    Raises:
        CollectionError: not a single list can be made, or none of the held-out queries or none of the others.
    """
    held_out = _held_out_queries(source.queries, settings)
    built = [0, 0]
    pools = with_progress(source.pools, "queries", source.queries, console)
    for position, pool in enumerate(pools):
        random = Random(f"{settings.seed}:{pool.query.query_id}")  # so that a list does not depend on those before it
        for number in range(1, settings.lists_per_query + 1):
            try:
                item = build_list(pool, source.passages, teacher, settings.sampling, random, number)
            except CollectionError as error:
                skipped[str(error)] += 1
                continue
            part = int(position in held_out)
            built[part] += 1
            yield part, item
    if not sum(built):
        raise CollectionError(f"no list can be made of {source.queries} queries; {_summary(skipped) or 'give some'}")
    if held_out and not all(built):
        raise CollectionError(
            f"--held-out-share {settings.held_out_share} leaves {built[0]} lists to train on and {built[1]} held out, "
            f"of {source.queries} queries; give more queries or another share"
        )


def _held_out_queries(queries: int, settings: BuildListsSettings) -> set[int]:
    """Positions of a random sample of the queries, at least one if any are requested."""
    if not settings.held_out_share or not queries:
        return set()
    count = max(1, round(settings.held_out_share * queries))
    return set(Random(f"{settings.seed}:held-out").sample(range(queries), count))


def _summary(skipped: Counter[str]) -> str:
    return "; ".join(f"skipped lists: {count:,}, {reason}" for reason, count in skipped.items())


def _numbered(query: Query, number: int) -> Query:
    return query if number == 1 else replace(query, query_id=f"{query.query_id}#{number}")


def _open_source(settings: BuildListsSettings, encoder: Encoder | None) -> Source:
    if settings.requests:
        return _from_requests(settings.requests, settings, encoder)
    if settings.medquad:
        return _from_medquad(settings.medquad, settings, encoder)
    return _from_collection(beir.checked_folder(settings.collection), settings, encoder)


def _from_requests(path: Path, settings: BuildListsSettings, encoder: Encoder | None) -> Source:
    requests = all_requests = _sample(read_requests(path), settings)
    grades = grades_by_query(read_qrels(settings.qrels)) if settings.qrels else {}
    if settings.qrels and settings.teacher.reads_qrels:
        requests = _judged(requests, grades, settings.qrels)
    passages = request_collection(all_requests, settings.passage_words)
    if encoder:
        texts = [passage.text for passage in passages]
        passages = with_vectors(passages, encode_texts(encoder.encode_passages, texts, console))
    encode = encoder.encode_queries if encoder else None
    pools = request_pools(requests, passages, grades, settings.depth, encode, settings.prefix)
    return Source(pools, len(requests), passages)


def _judged(requests: list[Request], grades: Grades, qrels: Path) -> list[Request]:
    """The requests whose query is judged. Raises: CollectionError when there is none."""
    judged = [request for request in requests if request.query.query_id in grades]
    if not judged:
        examples = [repr(next(iter(ids), "")) for ids in ((r.query.query_id for r in requests), grades)]
        raise CollectionError(
            f"none of the {len(requests)} queries is judged in {qrels} ({len(grades)} queries); give the judgements of "
            f"these requests: their query_ids are like {examples[0]}, those of the judgements like {examples[1]}"
        )
    if len(judged) < len(requests):
        console.print(f"{len(judged):,} of {len(requests):,} queries are judged in {qrels}; the others give no lists")
    return judged


def _from_medquad(path: Path, settings: BuildListsSettings, encoder: Encoder | None) -> Source:
    queries, answers = read_medquad(path, settings.prefix, settings.passage_words)
    passages = _sample(answers, settings)
    kept = {passage.doc_id for passage in passages}
    return _from_queries([item for item in queries if kept & item.grades.keys()], passages, settings, encoder)


def _from_collection(folder: Path, settings: BuildListsSettings, encoder: Encoder | None) -> Source:
    passages = read_collection(folder, settings.passage_words)
    if settings.queries is QuerySource.FILE:
        qrels = beir.qrels(folder, settings.split)
        all_queries = beir.queries(folder)
        judged = judged_queries(all_queries, qrels, settings.prefix)
        if not judged:
            raise CollectionError(
                f"none of the {len(all_queries)} queries of {folder} is judged in qrels/{settings.split}.tsv; "
                "give another --split"
            )
        return _from_queries(_sample(judged, settings), passages, settings, encoder)
    passages = _sample(passages, settings)
    queries = pseudo_queries(passages, settings.remove_share, settings.seed, settings.prefix)
    return _from_queries(queries, passages, settings, encoder)


def _from_queries(
    queries: list[CollectionQuery], passages: list[Passage], settings: BuildListsSettings, encoder: Encoder | None
) -> Source:
    """Pools of the nearest neighbours; without an encoder, of the relevant passages only."""
    if encoder is None:
        return Source(relevant_only_pools(queries, passages), len(queries), passages)
    vectors = encode_texts(encoder.encode_passages, [passage.text for passage in passages], console)
    passages = with_vectors(passages, vectors)
    pools = neighbour_pools(queries, passages, vectors, encoder, settings.depth)
    return Source(pools, len(queries), passages)


def _sample(items: list[T], settings: BuildListsSettings) -> list[T]:
    """A random sample of `settings.limit` items, in their original order."""
    if not settings.limit or settings.limit >= len(items):
        return items
    positions = Random(settings.seed).sample(range(len(items)), settings.limit)
    return [items[position] for position in sorted(positions)]
