"""Candidate pools and the sampling of training lists from them. All randomness comes from the given generator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random

from rerank.types import Passage, Query


@dataclass(frozen=True, slots=True)
class Pool:
    """A query with its first-stage candidates; `make_pool` creates one.

    Attributes:
        candidates: candidates with distinct texts, in first-stage order.
        grades: doc_id → known grade; any other passage has grade 0.
        left_out: number of the candidates that have no text, or the same text as an earlier candidate.
    """

    query: Query
    candidates: tuple[Passage, ...]
    grades: Mapping[str, float]
    left_out: int = 0


class ListOrder(StrEnum):
    """Order of the passages within a training list."""

    FIRST_STAGE = "first-stage"
    COSINE = "cosine"
    RANDOM = "random"


def make_pool(query: Query, candidates: Sequence[Passage], grades: Mapping[str, float]) -> Pool:
    """A pool of the candidates with distinct texts that are not blank.

    If several candidates have the same text, the first one stays, with the highest of their grades.
    """
    kept: dict[str, Passage] = {}
    best = dict(grades)
    for candidate in candidates:
        if not candidate.text.strip():
            continue
        first = kept.setdefault(candidate.text, candidate).doc_id
        if candidate.doc_id in grades:
            best[first] = max(best.get(first, 0.0), grades[candidate.doc_id])
    return Pool(query, tuple(kept.values()), best, len(candidates) - len(kept))


def sample_passages(
    pool: Pool, sizes: tuple[int, int], random: Random, order: ListOrder = ListOrder.FIRST_STAGE
) -> tuple[Passage, ...]:
    """Passages of one training list, which always has one relevant candidate if the pool has any.

    Args:
        sizes: smallest and largest number of passages; all numbers in this range are equally likely. The list is
            shorter if the pool does not have enough passages.
        order: order of the list; COSINE needs vectors on the query and the passages.
    """
    n = random.randint(*sizes)
    positions = range(len(pool.candidates))
    relevant = [i for i in positions if pool.grades.get(pool.candidates[i].doc_id, 0.0) > 0]
    required = [random.choice(relevant)] if relevant else []
    others = [i for i in positions if i not in required]
    sampled = random.sample(others, min(n - len(required), len(others)))
    passages = [pool.candidates[i] for i in sorted(required + sampled)]
    if order is ListOrder.RANDOM:
        random.shuffle(passages)
    elif order is ListOrder.COSINE:
        passages.sort(key=lambda passage: -cosine(pool.query, passage))
    return tuple(passages)


def cosine(query: Query, passage: Passage) -> float:
    """Cosine of query and passage, the inner product of their unit vectors."""
    if query.vector is None or passage.vector is None:
        raise RuntimeError(f"{query.query_id} or {passage.doc_id} has no vector; this is a bug")
    return float(query.vector @ passage.vector)
