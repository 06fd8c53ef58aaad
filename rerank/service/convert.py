"""Conversion of protobuf messages to internal types and back.

Requests are validated here, and the rest of the code relies on it. Only what depends on the model, such as the largest
window, is checked when the registry resolves the model.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, TypeVar

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from rerank.config import Limits
from rerank.errors import InvalidRequest
from rerank.registry import ModelDescription
from rerank.reranker import SearchResult
from rerank.retrieval.feedback_search import FeedbackReport
from rerank.retrieval.index import IndexManifest
from rerank.retrieval.query_update import FeedbackSettings
from rerank.service.request_fields import FEEDBACK_METHODS, FIRST_STAGES, STRATEGIES
from rerank.service.wire_format import count_fields
from rerank.types import (
    CONTROL,
    CandidateSource,
    FirstStage,
    InterpolationReport,
    Query,
    RankedCandidate,
    Ranking,
    RankOptions,
    Trace,
    WindowTrace,
    is_valid_doc_id,
)
from rerank.v1 import rerank_pb2 as pb

T = TypeVar("T")
U = TypeVar("U")
N = TypeVar("N", int, float)
M = TypeVar("M", bound=Message)

_DEFAULT_DEPTH = 100
#: Passages in all windows of a trace: some 100 kB. Sliding windows over 1,000 candidates hold 2,000.
MAX_PASSAGES = 10_000


#: Fields that a message may have for each candidate, which has five and is one itself, and beside the candidates. What
#: is left over is for fields of later versions of the protocol.
_FIELDS_PER_CANDIDATE, _OTHER_FIELDS = 8, 64
#: Bound the cost of a query vector update: each step computes top_k² pairs.
_MAX_TOP_K, _MAX_STEPS = 200, 200
#: Above this, the trust region is too small for any update.
_MAX_MIN_COSINE = 0.999
#: Above this weight of the first stage, its order would decide everything.
_MAX_INTERPOLATION = 100


@dataclass(frozen=True, slots=True)
class RerankCall:
    """A validated Rerank request."""

    query: Query
    candidates: tuple[CandidateSource, ...]
    options: RankOptions
    return_passages: bool
    include_trace: bool


@dataclass(frozen=True, slots=True)
class SearchCall:
    """A validated Search request."""

    query: Query
    first_stage: FirstStage
    depth: int
    options: RankOptions
    return_passages: bool
    include_trace: bool
    feedback: FeedbackSettings | None = None


def check_field_count(message: bytes, kind: Descriptor, limits: Limits) -> None:
    """Refuses a serialized message of a type that has more fields than the largest allowed list of candidates needs.

    It comes before the message is parsed, which takes seconds for millions of fields. A list that is a little too long
    passes, and `rerank_call` refuses it.

    Raises:
        InvalidRequest: names the number and the limit.
    """
    limit = _FIELDS_PER_CANDIDATE * limits.max_candidates + _OTHER_FIELDS
    count = count_fields(message, kind, limit)
    if count.total <= limit:
        return
    field = kind.fields_by_name.get("candidates")
    candidates = count.of[field.number] if field else 0
    if candidates > limits.max_candidates:
        raise _too_many("candidates", f"{candidates} or more", limits.max_candidates, "candidates")
    raise InvalidRequest(
        "request",
        f"the message has more than {limit} fields, those of its candidates included; send each field once, and at "
        f"most {limits.max_candidates} candidates",
        {"limit": str(limit)},
    )


def rerank_call(request: pb.RerankRequest, limits: Limits) -> RerankCall:
    """The validated form of a RerankRequest. Raises: InvalidRequest, which names the field, the value and the limit."""
    return RerankCall(
        query=_query(request.query, request.instruction, limits),
        candidates=_candidates(request.candidates, limits),
        options=replace(_options(request), ordered=request.ordered or not request.HasField("ordered")),
        return_passages=request.return_passages,
        include_trace=request.include_trace,
    )


def search_call(request: pb.SearchRequest, limits: Limits) -> SearchCall:
    """The validated form of a SearchRequest. Raises as `rerank_call` does."""
    depth = _not_negative("depth", request.depth) or min(_DEFAULT_DEPTH, limits.max_candidates)
    _at_most("depth", depth, limits.max_candidates, "candidates")
    return SearchCall(
        query=_query(request.query, request.instruction, limits),
        first_stage=_enum_member("first_stage", request.first_stage, FIRST_STAGES, FirstStage.HYBRID_RRF),
        depth=depth,
        options=_options(request),
        return_passages=request.return_passages,
        include_trace=request.include_trace,
        feedback=_feedback(request.feedback) if request.HasField("feedback") else None,
    )


def check_number_of_candidates(candidates: Sized, limits: Limits) -> None:
    """To be called before anything looks at each of them. Raises: InvalidRequest if there are too many."""
    _at_most("candidates", len(candidates), limits.max_candidates, "candidates")


def rerank_response(ranking: Ranking, return_passages: bool, include_trace: bool = False) -> pb.RerankResponse:
    """The response to a Rerank request; with the text of each passage if `return_passages`."""
    return pb.RerankResponse(
        results=_results(ranking.ranked, return_passages),
        score_kind=f"SCORE_KIND_{ranking.score_kind.name}",
        execution=_execution(ranking.trace),
        trace=trace_message(ranking.trace) if include_trace else None,
    )


def search_response(result: SearchResult, return_passages: bool, include_trace: bool = False) -> pb.SearchResponse:
    """The response to a Search request; with the text of each passage if `return_passages`."""
    return pb.SearchResponse(
        results=_results(result.ranking.ranked, return_passages),
        score_kind=f"SCORE_KIND_{result.ranking.score_kind.name}",
        execution=_execution(result.ranking.trace),
        first_stage=f"FIRST_STAGE_{result.first_stage.name}",
        first_stage_hits=result.hits,
        first_stage_ms=result.first_stage_ms,
        feedback=None if result.feedback is None else _feedback_report(result.feedback),
        trace=trace_message(result.ranking.trace) if include_trace else None,
    )


def list_models_response(models: Iterable[ModelDescription], manifest: IndexManifest | None) -> pb.ListModelsResponse:
    """The response to a ListModels request; `manifest` is that of the index, None without an index."""
    return pb.ListModelsResponse(models=map(_model, models), index=_index(manifest) if manifest else None)


def _query(text: str, instruction: str, limits: Limits) -> Query:
    _at_most("query", len(text), limits.max_query_chars, "characters")
    _at_most("instruction", len(instruction), limits.max_instruction_chars, "characters")
    return Query.of(Query(text, instruction=CONTROL.sub(" ", instruction).strip()))


def _candidates(candidates: Sequence[pb.Candidate], limits: Limits) -> tuple[CandidateSource, ...]:
    if not candidates:
        raise InvalidRequest("candidates", "the list is empty; send at least one candidate")
    _at_most("candidates", len(candidates), limits.max_candidates, "candidates")
    sources = tuple(_candidate(candidate, f"candidates[{i}]", limits) for i, candidate in enumerate(candidates))
    if len({source.doc_id for source in sources}) < len(sources):
        raise _repeated_doc_id(sources)
    return sources


def _repeated_doc_id(sources: Sequence[CandidateSource]) -> InvalidRequest:
    position_of: dict[str, int] = {}
    position = next(i for i, source in enumerate(sources) if position_of.setdefault(source.doc_id, i) != i)
    doc_id = sources[position].doc_id
    return InvalidRequest(
        f"candidates[{position}].doc_id",
        f"{doc_id!r} is also the doc_id of candidates[{position_of[doc_id]}]; send each doc_id once",
    )


def _candidate(candidate: pb.Candidate, field: str, limits: Limits) -> CandidateSource:
    _at_most(f"{field}.doc_id", len(candidate.doc_id), limits.max_doc_id_chars, "characters")
    if not is_valid_doc_id(candidate.doc_id):
        problem = "is blank or contains tabs, line ends or other control characters; use an id without them"
        raise InvalidRequest(f"{field}.doc_id", f"{candidate.doc_id!r} {problem}")
    text = candidate.text if candidate.HasField("text") else None
    if text is None and not candidate.in_index:
        problem = "neither text nor in_index is set; send the text, or set in_index to read it from the index"
        raise InvalidRequest(f"{field}.text", problem)
    _at_most(f"{field}.text", len(candidate.text), limits.max_passage_chars, "characters")
    _at_most(f"{field}.title", len(candidate.title), limits.max_passage_chars, "characters")
    return CandidateSource(
        doc_id=candidate.doc_id,
        text=None if text is None else CONTROL.sub(" ", text),
        in_index=candidate.in_index,
        score=candidate.first_stage_score if candidate.HasField("first_stage_score") else None,
        title=CONTROL.sub(" ", candidate.title),
    )


def _options(request: pb.RerankRequest | pb.SearchRequest) -> RankOptions:
    strategy = request.strategy
    return RankOptions(
        model=request.model,
        top_n=request.top_n,
        strategy=_enum_member("strategy.kind", strategy.kind, STRATEGIES, ""),
        window_size=strategy.window_size,
        stride=strategy.stride,
        early_stop=strategy.early_stop,
        preranker=strategy.preranker,
        allow_partial=request.allow_partial,
        interpolation=_first_stage_weight(strategy.interpolation) if strategy.HasField("interpolation") else None,
    )


def _first_stage_weight(interpolation: pb.Interpolation) -> float:
    return _between("strategy.interpolation.first_stage", interpolation.first_stage, 0, _MAX_INTERPOLATION)


def _feedback(feedback: pb.Feedback) -> FeedbackSettings:
    default = FeedbackSettings()
    learning_rate = feedback.learning_rate or default.learning_rate
    min_cosine = feedback.min_cosine if feedback.HasField("min_cosine") else default.min_cosine
    return FeedbackSettings(
        method=_enum_member("feedback.method", feedback.method, FEEDBACK_METHODS, default.method),
        top_k=_between("feedback.top_k", feedback.top_k or default.top_k, 2, _MAX_TOP_K),
        steps=_between("feedback.steps", feedback.steps or default.steps, 1, _MAX_STEPS),
        learning_rate=_between("feedback.learning_rate", learning_rate, 0, 1),
        min_cosine=_between("feedback.min_cosine", min_cosine, 0, _MAX_MIN_COSINE),
    )


def _not_negative(field: str, value: int) -> int:
    if value < 0:
        raise InvalidRequest(field, f"{value} is negative; use 0 or more", {"value": str(value)})
    return value


def _between(field: str, value: N, least: float, most: float) -> N:
    if not least <= value <= most:  # also true for nan
        raise InvalidRequest(
            field,
            f"{value} is not between {least} and {most}; use a value in this range",
            {"value": str(value), "limit": f"{least} to {most}"},
        )
    return value


def _at_most(field: str, value: int, limit: int, unit: str) -> None:
    if value > limit:
        raise _too_many(field, value, limit, unit)


def _too_many(field: str, value: int | str, limit: int, unit: str) -> InvalidRequest:
    return InvalidRequest(
        field,
        f"{value} {unit} exceed the limit of {limit}; send at most {limit}",
        {"value": str(value), "limit": str(limit)},
    )


def _enum_member(field: str, number: int, numbers: Mapping[T, int], unspecified: U) -> T | U:
    """The member that a number of a protobuf enum stands for; `unspecified` for 0."""
    members: dict[int, T | U] = {0: unspecified} | {number: member for member, number in numbers.items()}
    if number not in members:
        raise InvalidRequest(field, f"{number} is not a value of this enum in rerank.v1; use one of {sorted(members)}")
    return members[number]


def _results(ranked: Iterable[RankedCandidate], return_passages: bool) -> list[pb.RankedCandidate]:
    return [
        pb.RankedCandidate(
            doc_id=item.candidate.passage.doc_id,
            original_position=item.position,
            score=item.score,
            first_stage_score=item.candidate.score,
            text=item.candidate.passage.text if return_passages else None,
        )
        for item in ranked
    ]


def _execution(trace: Trace) -> pb.Execution:
    return _message_like(
        pb.Execution,
        trace,
        windows=len(trace.windows),
        completeness=f"COMPLETENESS_{trace.completeness.name}",
        repaired_identifiers=trace.repairs,
        interpolation=_interpolation_report(trace.interpolation) if trace.interpolation else None,
    )


def _interpolation_report(report: InterpolationReport) -> pb.InterpolationReport:
    return pb.InterpolationReport(
        first_stage=report.first_stage,
        applied=report.scores is not None,
        scores=f"INTERPOLATED_SCORES_{report.scores.name}" if report.scores else None,
        reason=report.reason,
    )


def _feedback_report(report: FeedbackReport) -> pb.FeedbackReport:
    return _message_like(pb.FeedbackReport, report, method=f"FEEDBACK_METHOD_{report.method.name}")


def _model(model: ModelDescription) -> pb.Model:
    return _message_like(
        pb.Model,
        model.info,
        name=model.name,
        ranker=model.info.kind,
        default_strategy=str(model.default_strategy),
        is_default=model.is_default,
        problem=model.problem,
    )


def _index(manifest: IndexManifest) -> pb.Index:
    return pb.Index(
        collection=manifest.collection,
        passages=manifest.passages,
        encoder=manifest.encoder.name,
        encoder_sha256=manifest.encoder.sha256,
    )


def trace_message(trace: Trace) -> pb.Trace:
    """The trace of a ranking; the windows with which it would hold more than MAX_PASSAGES are left out."""
    return pb.Trace(windows=map(_window, _first_windows(trace.windows)), input_order=trace.input_order)


def _first_windows(windows: Sequence[WindowTrace]) -> Sequence[WindowTrace]:
    passages = list(accumulate(len(window.positions) for window in windows))
    return windows[: bisect_right(passages, MAX_PASSAGES)]


def _window(window: WindowTrace) -> pb.WindowTrace:
    return _message_like(pb.WindowTrace, window, score_kind=f"SCORE_KIND_{window.score_kind.name}")


def _message_like(kind: type[M], values: object, **others: Any) -> M:
    """A message with the fields that an object has under the same names, and with others."""
    names = [field.name for field in kind.DESCRIPTOR.fields if field.name not in others and hasattr(values, field.name)]
    return kind(**{name: getattr(values, name) for name in names}, **others)
