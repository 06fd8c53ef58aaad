"""Training list: a query, passages in first-stage order, and the relevance of each passage."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rerank.errors import CollectionError
from rerank.types import Passage, Query


@dataclass(frozen=True, slots=True)
class TrainingList:
    """One training example of a ranker.

    Attributes:
        passages: two or more with distinct doc_ids, in first-stage order.
        relevance: a finite number per passage, higher is better. Its scale depends on the teacher, so only the order of
            unequal numbers is comparable between teachers.
        scores: of the first stage, one per passage; empty if they are not known.

    Raises:
        CollectionError: one of these conditions is not met, or a text is empty or not valid Unicode.
    """

    query: Query
    passages: tuple[Passage, ...]
    relevance: tuple[float, ...]
    scores: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if problem := _problem(self):
            raise CollectionError(problem)

    def select(self, positions: Sequence[int]) -> TrainingList:
        """The list with only the passages at these positions, in this order."""
        return TrainingList(
            self.query,
            tuple(self.passages[position] for position in positions),
            tuple(self.relevance[position] for position in positions),
            tuple(self.scores[position] for position in positions) if self.scores else (),
        )


def relevance_from_ranking(ranking: Sequence[int], n: int) -> tuple[float, ...]:
    """Relevance of n passages from a ranking: n for the first passage, n - 1 for the second, and so on.

    Args:
        ranking: positions in 0 … n - 1, best first. It may end early; the passages that it does not name get 0.

    Raises:
        CollectionError: the ranking is empty, or names a position twice or one outside the list.
    """
    if not ranking or len(set(ranking)) != len(ranking) or not all(0 <= position < n for position in ranking):
        raise CollectionError(f"ranking {list(ranking)} does not name passages 0 to {n - 1}, each at most once")
    relevance = [0.0] * n
    for rank, position in enumerate(ranking):
        relevance[position] = float(n - rank)
    return tuple(relevance)


def _problem(item: TrainingList) -> str | None:
    """The first condition that the list does not meet, as an error message; None when it meets all."""
    n, doc_ids = len(item.passages), {passage.doc_id for passage in item.passages}
    if n < 2:
        return f"{n} passages; a list needs two or more"
    if len(doc_ids) < n:
        return f"{n} passages with {len(doc_ids)} distinct doc_ids"
    if len(item.relevance) != n:
        return f"{len(item.relevance)} relevances for {n} passages"
    if not_finite := [value for value in item.relevance if not math.isfinite(value)]:
        return f"relevance {not_finite[0]} is not finite"
    if item.scores and len(item.scores) != n:
        return f"{len(item.scores)} scores for {n} passages"
    if not item.query.text.strip():
        return "the query is empty"
    for passage in item.passages:
        if not passage.text.strip():
            return f"passage {passage.doc_id!r} is empty"
    return _encoding_problem([item.query.text, *(passage.text for passage in item.passages)])


def _encoding_problem(texts: Iterable[str]) -> str | None:
    """JSON can contain half of a surrogate pair, which no tokenizer accepts."""
    try:
        "".join(texts).encode()
    except UnicodeEncodeError as error:
        return f"a text is not valid Unicode ({error.reason})"
    return None
