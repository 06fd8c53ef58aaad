"""Candidate pools and the sampling of training lists from them. All randomness comes from the given generator."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random

from rerank.types import Candidate, Passage, Query

#: Passages examined for each random negative that is needed; some are candidates or contain the query.
_EXAMINED_PER_NEGATIVE = 4


@dataclass(frozen=True, slots=True)
class Pool:
    """A query with its first-stage candidates; `make_pool` creates one.

    Attributes:
        candidates: in first-stage order, with distinct texts.
        grades: doc_id → known grade; any other passage has grade 0.
    """

    query: Query
    candidates: tuple[Candidate, ...]
    grades: Mapping[str, float]


class ListOrder(StrEnum):
    """Order of the passages within a training list."""

    FIRST_STAGE = "first-stage"
    COSINE = "cosine"
    RANDOM = "random"
    SLIDING = "sliding"


@dataclass(frozen=True, slots=True)
class ListSampling:
    """Parameters of the sampling of a training list from a pool.

    Attributes:
        min_passages, max_passages: range of the list's length; every length in it is equally likely.
        random_share: share of random negatives among the passages other than the relevant one, in 0–1.
        order: order of the list; COSINE needs vectors on the query and the passages, and SLIDING the relevance, so
            that `sliding_order` gives it after the sampling.
    """

    min_passages: int
    max_passages: int
    random_share: float = 0.0
    order: ListOrder = ListOrder.FIRST_STAGE


def make_pool(query: Query, candidates: Sequence[Candidate], grades: Mapping[str, float]) -> Pool:
    """A pool without candidates that repeat an earlier one's text; the earlier one gets the higher grade of the two."""
    kept: dict[str, Candidate] = {}
    best = dict(grades)
    for candidate in candidates:
        first = kept.setdefault(candidate.passage.text, candidate).passage.doc_id
        best[first] = max(best.get(first, 0.0), grades.get(candidate.passage.doc_id, 0.0))
    return Pool(query, tuple(kept.values()), best)


def sample_passages(
    pool: Pool, collection: Sequence[Passage], sampling: ListSampling, random: Random
) -> tuple[Passage, ...]:
    """Passages of one training list: candidates in first-stage order followed by random negatives, unless reordered.

    The list always has one relevant candidate if the pool has any. It is shorter than requested when the pool or the
    collection does not have enough passages.

    Args:
        collection: passages from which the random negatives are drawn.
    """
    n = random.randint(sampling.min_passages, sampling.max_passages)
    positions = range(len(pool.candidates))
    relevant = [i for i in positions if pool.grades.get(pool.candidates[i].passage.doc_id, 0.0) > 0]
    required = [random.choice(relevant)] if relevant else []
    n_random = round(sampling.random_share * (n - len(required)))
    others = [i for i in positions if i not in required]
    sampled = random.sample(others, min(n - len(required) - n_random, len(others)))
    candidates = [pool.candidates[i].passage for i in sorted(required + sampled)]
    passages = [*candidates, *_random_negatives(pool, collection, n_random, random)]
    if sampling.order is ListOrder.RANDOM:
        random.shuffle(passages)
    elif sampling.order is ListOrder.COSINE:
        passages.sort(key=lambda passage: -cosine(pool.query, passage))
    return tuple(passages)


def sliding_order(relevance: Sequence[float], random: Random) -> list[int]:
    """Positions of passages of these relevances in the order of a window of a sliding pass over a first-stage list.

    The first half keeps its order. The second half is in the order of relevance, with normal noise of half its standard
    deviation: those are the passages that the ranker, which errs, has moved up from the windows below.
    """
    n, half = len(relevance), len(relevance) // 2
    noise = statistics.pstdev(relevance) / 2
    noisy = [value + random.gauss(0, noise) for value in relevance]
    return [*range(half), *sorted(range(half, n), key=lambda position: -noisy[position])]


def cosine(query: Query, passage: Passage) -> float:
    """Inner product of the unit vectors of query and passage."""
    if query.vector is None or passage.vector is None:
        raise RuntimeError(f"{query.query_id} or {passage.doc_id} has no vector; this is a bug")
    return float(query.vector @ passage.vector)


def _random_negatives(pool: Pool, collection: Sequence[Passage], n: int, random: Random) -> Iterator[Passage]:
    """Up to n passages that are not in the pool, are not judged relevant, and do not contain the query."""
    doc_ids = {candidate.passage.doc_id for candidate in pool.candidates}
    texts = {candidate.passage.text for candidate in pool.candidates}
    examined = min(len(collection), _EXAMINED_PER_NEGATIVE * n + len(doc_ids))
    for passage in (collection[i] for i in random.sample(range(len(collection)), examined) if n > 0):
        known = passage.doc_id in doc_ids or passage.text in texts or pool.grades.get(passage.doc_id, 0.0) > 0
        if known or pool.query.text in passage.text:
            continue
        texts.add(passage.text)
        yield passage
        n -= 1
