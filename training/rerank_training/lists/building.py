"""Builds training lists: reads a source, samples lists from its pools, and lets a teacher assign the relevance."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

from rerank.commands.progress import with_progress
from rerank.commands.run import console
from rerank.errors import CollectionError, ConfigError
from rerank.models.encoder import DEFAULT_ENCODER, Encoder
from rerank.types import Query
from rerank_training.lists.files import write_lists
from rerank_training.lists.sampling import Pool, sample_passages
from rerank_training.lists.settings import BuildListsSettings
from rerank_training.lists.sources import Source, open_source
from rerank_training.lists.teachers import Teacher, open_teacher
from rerank_training.lists.training_list import TrainingList


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
    source = open_source(settings, encoder)
    skipped: Counter[str] = Counter()
    with open_teacher(settings.teacher, settings.config, settings.model) as teacher:
        parts = _build_lists(source, teacher, settings, skipped)
    for path, lists in zip(paths, parts, strict=False):
        console.print(f"{path}: {write_lists(path, lists):,} lists")
    console.print(f"made from {source.queries:,} queries, with the teacher {settings.teacher}")
    if skipped:
        console.print(_summary(skipped))


def _build_list(
    pool: Pool, teacher: Teacher, settings: BuildListsSettings, random: Random, number: int
) -> TrainingList:
    """Samples one list and lets the teacher assign its relevance.

    Args:
        number: distinguishes the lists of one query; from 2 on it is appended to the query_id.

    Raises:
        CollectionError: there are too few passages, or all are equally relevant.
    """
    passages = sample_passages(pool, settings.sizes, random, settings.order)
    if len(passages) < 2:
        raise CollectionError("fewer than two passages")
    relevance = teacher(pool, passages)
    if len(set(relevance)) < 2:
        raise CollectionError("all passages equally relevant")
    return TrainingList(_numbered(pool.query, number), passages, relevance)


def _build_lists(
    source: Source, teacher: Teacher, settings: BuildListsSettings, skipped: Counter[str]
) -> tuple[list[TrainingList], list[TrainingList]]:
    """The lists of a source to train on and those that are held out; lists of the same query stay together.

    Lists that cannot be made are counted in `skipped` by reason.

    Raises:
        CollectionError: not a single list can be made, or none of the held-out queries or none of the others.
    """
    held_out = _held_out_queries(source.queries, settings)
    parts: tuple[list[TrainingList], list[TrainingList]] = ([], [])
    for position, pool in enumerate(with_progress(source.pools, "queries", source.queries, console)):
        random = Random(f"{settings.seed}:{pool.query.query_id}")  # so that a list does not depend on those before it
        for number in range(1, settings.lists_per_query + 1):
            try:
                item = _build_list(pool, teacher, settings, random, number)
                parts[position in held_out].append(item)
            except CollectionError as error:
                skipped[str(error)] += 1
    if not any(parts):
        raise CollectionError(f"no list can be made of {source.queries} queries; {_summary(skipped) or 'give some'}")
    if held_out and not all(parts):
        raise CollectionError(
            f"--held-out-share {settings.held_out_share} leaves {len(parts[0])} lists to train on and {len(parts[1])} "
            f"held out, of {source.queries} queries; give more queries or another share"
        )
    return parts


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
