"""The requests of the service, and the checks of their values, for all ports.

A port converts its messages to these requests, and checks only their form. Values whose limit depends on the model,
such as the window size, are checked later, when the registry resolves the model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence, Sized
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from rerank.config import Limits
from rerank.engine.accounts import CallUsage
from rerank.errors import InvalidRequest, too_many
from rerank.names import DEFAULT_FIRST_STAGE
from rerank.types import CONTROL, VALID_DOC_ID, FeedbackSettings, FirstStage, Passage, Query, Ranking, RankOptions

if TYPE_CHECKING:
    from rerank.reranking.reranker import AsyncReranker, SearchResult  # imports torch, which MCP may not need

N = TypeVar("N", int, float)

_DEFAULT_DEPTH = 100
#: The longest doc_id, which errors, logs and replies contain.
_MAX_DOC_ID_CHARS = 500
#: Limits on a query vector update, whose steps compute top_k² pairs each.
_MAX_TOP_K, _MAX_STEPS = 200, 200
#: Above this, the trust region is too small for any update.
_MAX_MIN_COSINE = 0.999


@dataclass(frozen=True, slots=True)
class RerankRequest:
    """A request to order candidates."""

    query: Query
    candidates: Sequence[Passage]
    options: RankOptions

    def checked(self, limits: Limits) -> RerankRequest:
        """Checks the request; returns it without control characters.

        Raises:
            InvalidRequest: a value is not allowed; the error names the field, the value, the limit and what to do.
        """
        query = _query(self.query, limits)
        if not self.candidates:
            raise InvalidRequest("candidates", "the list is empty; send at least one candidate")
        check_number_of_candidates(self.candidates, limits)
        _check_options(self.options, len(self.candidates), limits)
        return RerankRequest(query, _candidates(self.candidates, limits), self.options)

    async def rank(self, reranker: AsyncReranker, deadline_s: float, usage: CallUsage) -> Ranking:
        return await reranker.rerank(self.query, self.candidates, self.options, deadline_s, usage)


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """A request to retrieve candidates from the index and to order them.

    Attributes:
        depth: number of candidates; 0: 100, or the limit if that is smaller.
        feedback: settings of relevance feedback; None: no feedback.
    """

    query: Query
    options: RankOptions
    first_stage: FirstStage = DEFAULT_FIRST_STAGE
    depth: int = 0
    feedback: FeedbackSettings | None = None

    def checked(self, limits: Limits) -> SearchRequest:
        """Checks the request; returns it with its depth. Raises: see `RerankRequest.checked`."""
        if self.depth < 0:
            raise InvalidRequest("depth", f"{self.depth} is negative; use 0 or more", {"value": str(self.depth)})
        depth = self.depth or min(_DEFAULT_DEPTH, limits.max_candidates)
        _at_most("depth", depth, limits.max_candidates, "candidates", "limits.max_candidates")
        query = _query(self.query, limits)
        if self.feedback is not None:
            _check_feedback(self.feedback)
        _check_options(self.options, depth, limits)
        return replace(self, query=query, depth=depth)

    async def rank(self, reranker: AsyncReranker, deadline_s: float, usage: CallUsage) -> SearchResult:
        return await reranker.search(
            self.query, self.first_stage, self.depth, self.options, deadline_s, self.feedback, usage
        )


def check_number_of_candidates(candidates: Sized, limits: Limits) -> None:
    """Refuses too many candidates before they are converted. Raises: InvalidRequest."""
    _at_most("candidates", len(candidates), limits.max_candidates, "candidates", "limits.max_candidates")


def _query(query: Query, limits: Limits) -> Query:
    _at_most("query", len(query.text), limits.max_query_chars, "characters", "limits.max_query_chars")
    _at_most("instruction", len(query.instruction), limits.max_query_chars, "characters", "limits.max_query_chars")
    return Query.of(replace(query, instruction=CONTROL.sub(" ", query.instruction).strip()))


def _candidates(given: Sequence[Passage], limits: Limits) -> tuple[Passage, ...]:
    """The candidates without control characters. Raises: InvalidRequest."""
    candidates, doc_ids, most = list[Passage](), set[str](), limits.max_passage_chars
    for index, passage in enumerate(given):
        doc_id, text, title = passage.doc_id, passage.text, passage.title
        if len(doc_id) > _MAX_DOC_ID_CHARS or len(text) > most or len(title) > most:
            raise _too_long(passage, index, limits)
        if not VALID_DOC_ID.fullmatch(doc_id):
            problem = "is blank or contains tabs, line ends or other control characters; use an id without them"
            raise InvalidRequest(f"candidates[{index}].doc_id", f"{doc_id!r} {problem}")
        if passage.score is not None and not math.isfinite(passage.score):
            problem = f"{passage.score} is not a finite number; send one, or leave it out"
            field = f"candidates[{index}].first_stage_score"
            raise InvalidRequest(field, problem, {"value": str(passage.score)})
        if CONTROL.search(text) or CONTROL.search(title):
            passage = replace(passage, text=CONTROL.sub(" ", text), title=CONTROL.sub(" ", title))
        candidates.append(passage)
        doc_ids.add(doc_id)
    if len(doc_ids) < len(candidates):
        raise _repeated_doc_id(candidates)
    return tuple(candidates)


def _too_long(passage: Passage, index: int, limits: Limits) -> InvalidRequest:
    if len(passage.doc_id) > _MAX_DOC_ID_CHARS:
        return too_many(f"candidates[{index}].doc_id", len(passage.doc_id), _MAX_DOC_ID_CHARS, "characters", "")
    name = "text" if len(passage.text) > limits.max_passage_chars else "title"
    chars, field = len(getattr(passage, name)), f"candidates[{index}].{name}"
    return too_many(field, chars, limits.max_passage_chars, "characters", "limits.max_passage_chars")


def _repeated_doc_id(passages: Sequence[Passage]) -> InvalidRequest:
    position_of: dict[str, int] = {}
    position = next(i for i, passage in enumerate(passages) if position_of.setdefault(passage.doc_id, i) != i)
    doc_id = passages[position].doc_id
    return InvalidRequest(
        f"candidates[{position}].doc_id",
        f"{doc_id!r} is also the doc_id of candidates[{position_of[doc_id]}]; send each doc_id once",
    )


def _check_options(options: RankOptions, candidates: int, limits: Limits) -> None:
    """Refuses options out of range, and more chunks in all than `max_candidates`. Raises: InvalidRequest."""
    most, limit = options.max_chunks_per_doc, limits.max_candidates
    if most > 1 and candidates * most > limit:
        fewer = limit // candidates
        raise InvalidRequest(
            "max_chunks_per_doc",
            f"{candidates} candidates with up to {most} chunks each are {candidates * most} passages, more than the "
            f"limit of {limit}; use {f'at most {fewer} chunks' if fewer > 1 else 'none'}, or send fewer candidates",
            {"value": str(candidates * most), "limit": str(limit)},
        )


def _check_feedback(feedback: FeedbackSettings) -> None:
    _between("feedback.top_k", feedback.top_k, 2, _MAX_TOP_K)
    _between("feedback.steps", feedback.steps, 0, _MAX_STEPS)
    _between("feedback.learning_rate", feedback.learning_rate, 0, 1)
    _between("feedback.min_cosine", feedback.min_cosine, 0, _MAX_MIN_COSINE)


def _between(field: str, value: N, least: float, most: float) -> None:
    if not least <= value <= most:  # also true for nan
        raise InvalidRequest(
            field,
            f"{value} is not between {least} and {most}; use a value in this range",
            {"value": str(value), "limit": f"{least} to {most}"},
        )


def _at_most(field: str, value: int, limit: int, unit: str, setting: str = "") -> None:
    if value > limit:
        raise too_many(field, value, limit, unit, setting)
