"""Requests of rerank.v1 as requests of the service. Their values are checked by the service itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from rerank.errors import InvalidRequest
from rerank.names import DEFAULT_FIRST_STAGE
from rerank.protobuf.enums import FEEDBACK_METHODS, FIRST_STAGE_KINDS, FIRST_STAGES, ON_FAILURE, STRATEGIES
from rerank.service.requests import RerankRequest, SearchRequest
from rerank.types import FeedbackSettings, FirstStageWeight, Passage, Query, RankOptions
from rerank.v1 import rerank_pb2 as pb

T = TypeVar("T")
U = TypeVar("U")


def rerank_request(message: pb.RerankRequest) -> RerankRequest:
    """The request of a message, whose candidates were counted. Raises: InvalidRequest for an enum or no text."""
    ordered = message.ordered or not message.HasField("ordered")
    return RerankRequest(
        Query(message.query, instruction=message.instruction),
        tuple(_passage(candidate, place) for place, candidate in enumerate(message.candidates)),
        replace(_options(message), ordered=ordered),
    )


def search_request(message: pb.SearchRequest) -> SearchRequest:
    """The request of a message. Raises: InvalidRequest for an unknown enum value."""
    return SearchRequest(
        Query(message.query, instruction=message.instruction),
        _options(message),
        _enum_member("first_stage", message.first_stage, FIRST_STAGES, DEFAULT_FIRST_STAGE),
        message.depth,
        _feedback(message.feedback) if message.HasField("feedback") else None,
    )


def _passage(message: pb.Candidate, place: int) -> Passage:
    if not (message.in_index or message.HasField("text")):
        problem = "neither text nor in_index is set; send the text, or set in_index to read it from the index"
        raise InvalidRequest(f"candidates[{place}].text", problem)
    score = message.first_stage_score if message.HasField("first_stage_score") else None
    return Passage(message.doc_id, message.text, score, message.title, in_index=message.in_index)


def _options(message: pb.RerankRequest | pb.SearchRequest) -> RankOptions:
    strategy = message.strategy
    return RankOptions(
        model=message.model,
        top_n=message.top_n,
        strategy=_enum_member("strategy.kind", strategy.kind, STRATEGIES, ""),
        window_size=strategy.window_size,
        stride=strategy.stride,
        preranker=strategy.preranker,
        allow_partial=message.allow_partial,
        on_failure=_enum_member("on_failure", message.on_failure, ON_FAILURE, ""),
        first_stage_weight=_first_stage_weight(message.first_stage_weight),
        min_relevance=message.min_relevance if message.HasField("min_relevance") else None,
        max_chunks_per_doc=message.max_chunks_per_doc,
    )


def _first_stage_weight(message: pb.FirstStageWeight) -> FirstStageWeight | None:
    if message.WhichOneof("weight") == "number":
        return message.number
    return _enum_member("first_stage_weight.kind", message.kind, FIRST_STAGE_KINDS, None)


def _feedback(message: pb.Feedback) -> FeedbackSettings:
    default = FeedbackSettings()
    return FeedbackSettings(
        method=_enum_member("feedback.method", message.method, FEEDBACK_METHODS, default.method),
        top_k=message.top_k or default.top_k,
        steps=message.steps,
        learning_rate=message.learning_rate,
        min_cosine=message.min_cosine if message.HasField("min_cosine") else default.min_cosine,
    )


def _enum_member(field: str, number: int, numbers: Mapping[T, int], unspecified: U) -> T | U:
    """The member for a number of a protobuf enum; `unspecified` for 0."""
    members: dict[int, T | U] = {0: unspecified} | {number: member for member, number in numbers.items()}
    if number not in members:
        raise InvalidRequest(field, f"{number} is not a value of this enum in rerank.v1; use one of {sorted(members)}")
    return members[number]
