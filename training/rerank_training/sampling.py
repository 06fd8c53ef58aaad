"""What the lists of a query are drawn from, and how. Pure; all chance comes from the given generator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random

from rerank.types import Candidate, Passage, Query

#: Strangers looked at for each one that is needed: some are candidates, or hold the query.
_LOOKED_AT = 4


@dataclass(frozen=True, slots=True)
class Pool:
    """A query and what a first stage found for it. `make_pool` makes one.

    Attributes:
        candidates: in first-stage order, with distinct texts.
        grades: doc_id → grade, as far as anybody judged; what is not in it counts with 0.
    """

    query: Query
    candidates: tuple[Candidate, ...]
    grades: Mapping[str, float]


class Order(StrEnum):
    """The order in which a list's passages stand, as the command line spells it."""

    FIRST_STAGE = "first-stage"
    COSINE = "cosine"
    RANDOM = "random"


@dataclass(frozen=True, slots=True)
class Draw:
    """How a list is drawn from a pool.

    Attributes:
        smallest, largest: the number of its passages; each number between them is equally likely.
        random_share: how many of the passages beside the relevant one are no candidates, in 0–1.
        order: of the list; by cosine, query and passages carry their vectors.
    """

    smallest: int
    largest: int
    random_share: float = 0.0
    order: Order = Order.FIRST_STAGE


def make_pool(query: Query, candidates: Sequence[Candidate], grades: Mapping[str, float]) -> Pool:
    """Leaves out candidates that repeat an earlier one's text; the earlier one gets the better grade of the two."""
    kept: dict[str, Candidate] = {}
    best = dict(grades)
    for candidate in candidates:
        first = kept.setdefault(candidate.passage.text, candidate).passage.doc_id
        best[first] = max(best.get(first, 0.0), grades.get(candidate.passage.doc_id, 0.0))
    return Pool(query, tuple(kept.values()), best)


def draw(pool: Pool, strangers: Sequence[Passage], how: Draw, random: Random) -> tuple[Passage, ...]:
    """The passages of one list: candidates in first-stage order, then strangers; or all of them in another order.

    One relevant candidate is always among them, where there is any. The list is shorter than asked for where the pool
    or the strangers do not suffice.
    """
    n = random.randint(how.smallest, how.largest)
    places = range(len(pool.candidates))
    relevant = [place for place in places if pool.grades.get(pool.candidates[place].passage.doc_id, 0.0) > 0]
    kept = [random.choice(relevant)] if relevant else []
    n_random = round(how.random_share * (n - len(kept)))
    others = [place for place in places if place not in kept]
    hard = random.sample(others, min(n - len(kept) - n_random, len(others)))
    chosen = [pool.candidates[place].passage for place in sorted(kept + hard)]
    drawn = [*chosen, *_unrelated(pool, strangers, n_random, random)]
    if how.order is Order.RANDOM:
        random.shuffle(drawn)
    elif how.order is Order.COSINE:
        drawn.sort(key=lambda passage: -cosine(pool.query, passage))
    return tuple(drawn)


def cosine(query: Query, passage: Passage) -> float:
    """The inner product of their vectors, which have length one."""
    if query.vector is None or passage.vector is None:
        raise RuntimeError(f"{query.query_id} or {passage.doc_id} has no vector; this is a bug")
    return float(query.vector @ passage.vector)


def _unrelated(pool: Pool, strangers: Sequence[Passage], n: int, random: Random) -> Iterator[Passage]:
    """Up to n passages that are not in the pool, judged relevant by nobody, and do not hold the query."""
    doc_ids = {candidate.passage.doc_id for candidate in pool.candidates}
    texts = {candidate.passage.text for candidate in pool.candidates}
    looked_at = random.sample(range(len(strangers)), min(len(strangers), _LOOKED_AT * n + len(doc_ids)))
    for passage in (strangers[place] for place in looked_at if n > 0):
        known = passage.doc_id in doc_ids or passage.text in texts or pool.grades.get(passage.doc_id, 0.0) > 0
        if known or pool.query.text in passage.text:
            continue
        texts.add(passage.text)
        yield passage
        n -= 1
