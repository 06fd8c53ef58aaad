"""The methods of RerankService: each validates its request, calls the reranker and converts the result.

Requests are validated here, and the rest of the code relies on it. Only what depends on the model, such as the largest
window, is checked when the registry resolves the model.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Any, TypeAlias, TypeVar

from google.protobuf.message import Message

from rerank.access.callers import Caller
from rerank.access.keys import KeyStore
from rerank.config import Limits
from rerank.engine.request import RankRequest
from rerank.errors import InvalidRequest
from rerank.reranking.registry import ModelDescription
from rerank.reranking.reranker import AsyncReranker, SearchResult
from rerank.retrieval.feedback_search import FeedbackReport
from rerank.retrieval.index import IndexManifest
from rerank.retrieval.query_update import FeedbackSettings
from rerank.service.calls import SMALL_MESSAGE, CallRecord, CallsInFlight, Method, OnEnd, Run, protobuf_methods
from rerank.service.request_fields import FEEDBACK_METHODS, FIRST_STAGE_KINDS, FIRST_STAGES, ON_FAILURE, STRATEGIES
from rerank.service.status import reason_of
from rerank.service.wire_format import too_many
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

RerankArguments: TypeAlias = tuple[Query, tuple[CandidateSource, ...], RankOptions]
SearchArguments: TypeAlias = tuple[Query, FirstStage, int, RankOptions, FeedbackSettings | None]

_DEFAULT_DEPTH = 100
#: Passages in all windows of a trace: some 100 kB. Sliding windows over 1,000 candidates hold 2,000.
MAX_PASSAGES = 10_000
#: Bound the cost of a query vector update: each step computes top_k² pairs.
_MAX_TOP_K, _MAX_STEPS = 200, 200
#: Above this, the trust region is too small for any update.
_MAX_MIN_COSINE = 0.999
#: Above this weight of the first stage, its order would decide everything.
_MAX_INTERPOLATION = 100


class RerankMethods:
    """Rerank, Search and ListModels over one reranker. Their exceptions are those of `rerank.errors`."""

    def __init__(self, reranker: AsyncReranker) -> None:
        self._reranker = reranker

    async def rerank(self, request: pb.RerankRequest, record: CallRecord) -> pb.RerankResponse:
        """Rerank. Raises: RerankError."""
        limits = self._reranker.config.limits
        convert = partial(rerank_arguments, request, limits)
        is_large = any(n > SMALL_MESSAGE for n in accumulate(len(c.text) + len(c.title) for c in request.candidates))
        query, candidates, options = await self._reranker.convert(convert) if is_large else convert()
        caller, options = self._of_caller(record, options)
        ranking = await self._reranker.rerank(query, candidates, options, self._deadline(record), caller)
        return ranking_response(pb.RerankResponse, ranking, request)

    async def search(self, request: pb.SearchRequest, record: CallRecord) -> pb.SearchResponse:
        """Search. Raises: RerankError."""
        query, first_stage, depth, options, feedback = search_arguments(request, self._reranker.config.limits)
        caller, options = self._of_caller(record, options)
        deadline = self._deadline(record)
        result = await self._reranker.search(query, first_stage, depth, options, deadline, feedback, caller)
        return search_response(result, request)

    async def list_models(self, request: pb.ListModelsRequest, record: CallRecord) -> pb.ListModelsResponse:
        """ListModels."""
        index = self._reranker.index
        return list_models_response(self._reranker.models(), index.manifest if index else None)

    def _deadline(self, record: CallRecord) -> float:
        """The earlier of the caller's deadline and the service's own limit."""
        return min(record.deadline, asyncio.get_running_loop().time() + self._reranker.config.limits.max_request_s)

    def _of_caller(self, record: CallRecord, options: RankOptions) -> tuple[str, RankOptions]:
        """The key, whose models are checked, or the connection, as shares of the engine are; options with defaults."""
        if record.caller is None:
            return record.peer, options
        self._check_models(options, record.caller)
        limits = record.caller.limits
        on_failure = options.on_failure or limits.on_failure or ""
        kind = options.first_stage_kind or limits.first_stage_kind or ""
        return record.key, replace(options, on_failure=on_failure, first_stage_kind=kind)

    def _check_models(self, options: RankOptions, caller: Caller) -> None:
        """Raises: PermissionDenied if the caller's key does not allow the model or the preranker."""
        default, *_ = self._reranker.models()
        caller.check_models([options.model or default.name, *filter(None, [options.preranker])])


def rerank_methods(reranker: AsyncReranker, calls: CallsInFlight, on_end: OnEnd) -> dict[str, Method]:
    """The methods of RerankService by their names. If `calls` has keys, holds requests to their tokens."""
    if calls.keys is not None:
        reranker.in_work = partial(_in_work, calls.keys, reranker)
    methods = RerankMethods(reranker)
    runs: dict[str, Run] = {"Rerank": methods.rerank, "Search": methods.search, "ListModels": methods.list_models}
    return protobuf_methods(pb.DESCRIPTOR.services_by_name["RerankService"], runs, calls, on_end)


@contextmanager
def _in_work(keys: KeyStore, reranker: AsyncReranker, request: RankRequest) -> Iterator[None]:
    """Counts the tokens of a request until the block ends. Raises: Overloaded if the caller's key allows no more."""
    caller = keys.caller(request.caller)
    if caller is None or caller.limits.max_queue_tokens is None:
        yield
        return
    with caller.queueing(reranker.engine.expected_tokens(request)):
        yield


def rerank_arguments(request: pb.RerankRequest, limits: Limits) -> RerankArguments:
    """The validated form of a RerankRequest. Raises: InvalidRequest, which names the field, the value and the limit."""
    query = _query(request.query, request.instruction, limits)
    candidates = _candidates(request.candidates, limits)
    ordered = request.ordered or not request.HasField("ordered")
    kind = _enum_member("first_stage_kind", request.first_stage_kind, FIRST_STAGE_KINDS, "")
    options = replace(_options(request, len(candidates), limits), ordered=ordered, first_stage_kind=kind)
    return query, candidates, options


def search_arguments(request: pb.SearchRequest, limits: Limits) -> SearchArguments:
    """The validated form of a SearchRequest. Raises as `rerank_arguments` does."""
    depth = _not_negative("depth", request.depth) or min(_DEFAULT_DEPTH, limits.max_candidates)
    _at_most("depth", depth, limits.max_candidates, "candidates")
    query = _query(request.query, request.instruction, limits)
    first_stage = _enum_member("first_stage", request.first_stage, FIRST_STAGES, FirstStage.HYBRID_RRF)
    feedback = _feedback(request.feedback) if request.HasField("feedback") else None
    return query, first_stage, depth, _options(request, depth, limits), feedback


def check_number_of_candidates(candidates: Sized, limits: Limits) -> None:
    """To be called before anything looks at each of them. Raises: InvalidRequest if there are too many."""
    _at_most("candidates", len(candidates), limits.max_candidates, "candidates")


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


def _options(request: pb.RerankRequest | pb.SearchRequest, candidates: int, limits: Limits) -> RankOptions:
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
        on_failure=_enum_member("on_failure", request.on_failure, ON_FAILURE, ""),
        interpolation=_first_stage_weight(strategy.interpolation) if strategy.HasField("interpolation") else None,
        min_relevance=request.min_relevance if request.HasField("min_relevance") else None,
        max_chunks_per_doc=request.max_chunks_per_doc and _chunks(request.max_chunks_per_doc, candidates, limits),
    )


def _chunks(most: int, candidates: int, limits: Limits) -> int:
    """Parts per document. Raises: InvalidRequest if all candidates could have more than there may be candidates."""
    if most > 1 and candidates * most > limits.max_candidates:
        fewer, limit = limits.max_candidates // candidates, limits.max_candidates
        raise InvalidRequest(
            "max_chunks_per_doc",
            f"{candidates} candidates with up to {most} chunks each are {candidates * most} passages, more than the "
            f"limit of {limit}; use {f'at most {fewer} chunks' if fewer > 1 else 'none'}, or send fewer candidates",
            {"value": str(candidates * most), "limit": str(limit)},
        )
    return most


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
        raise too_many(field, value, limit, unit)


def _enum_member(field: str, number: int, numbers: Mapping[T, int], unspecified: U) -> T | U:
    """The member that a number of a protobuf enum stands for; `unspecified` for 0."""
    members: dict[int, T | U] = {0: unspecified} | {number: member for member, number in numbers.items()}
    if number not in members:
        raise InvalidRequest(field, f"{number} is not a value of this enum in rerank.v1; use one of {sorted(members)}")
    return members[number]


def ranking_response(kind: type[M], ranking: Ranking, request: Any, **others: Any) -> M:
    """The response to a Rerank or Search request, with the texts of the passages and the trace if it asks for them."""
    return kind(
        results=[_result(item, request.return_passages) for item in ranking.ranked],
        score_kind=f"SCORE_KIND_{ranking.score_kind.name}",
        execution=_execution(ranking.trace),
        trace=trace_message(ranking.trace) if request.include_trace else None,
        **others,
    )


def search_response(result: SearchResult, request: pb.SearchRequest) -> pb.SearchResponse:
    """The response to a Search request."""
    return ranking_response(
        pb.SearchResponse,
        result.ranking,
        request,
        first_stage=f"FIRST_STAGE_{result.first_stage.name}",
        first_stage_hits=result.hits,
        first_stage_ms=result.first_stage_ms,
        feedback=None if result.feedback is None else _feedback_report(result.feedback),
    )


def _result(item: RankedCandidate, return_passages: bool) -> pb.RankedCandidate:
    passage = item.candidate.passage
    return _message_like(
        pb.RankedCandidate,
        item,
        doc_id=passage.doc_id,
        original_position=item.position,
        first_stage_score=item.candidate.score,
        text=passage.text if return_passages else None,
        span=item.span and pb.Span(start=item.span[0], end=item.span[1]),
    )


def _execution(trace: Trace) -> pb.Execution:
    return _message_like(
        pb.Execution,
        trace,
        windows=len(trace.windows),
        completeness=f"COMPLETENESS_{trace.completeness.name}",
        failure=reason_of(trace.failure) if trace.failure else "",
        repaired_identifiers=trace.repairs,
        interpolation=_interpolation_report(trace.interpolation) if trace.interpolation else None,
    )


def _interpolation_report(report: InterpolationReport) -> pb.InterpolationReport:
    return pb.InterpolationReport(
        first_stage=report.first_stage,
        applied=report.scores is not None,
        scores=f"INTERPOLATED_SCORES_{report.scores.name}" if report.scores else None,
        reason=report.reason,
        correlation=report.correlation,
        mean_correlation=report.of_caller.mean if report.of_caller else None,
        correlated_lists=report.of_caller.lists if report.of_caller else 0,
    )


def _feedback_report(report: FeedbackReport) -> pb.FeedbackReport:
    return _message_like(pb.FeedbackReport, report, method=f"FEEDBACK_METHOD_{report.method.name}")


def list_models_response(models: Iterable[ModelDescription], manifest: IndexManifest | None) -> pb.ListModelsResponse:
    """The response to a ListModels request; `manifest` is that of the index, None without an index."""
    return pb.ListModelsResponse(models=map(_model, models), index=_index(manifest) if manifest else None)


def _model(model: ModelDescription) -> pb.Model:
    return _message_like(
        pb.Model,
        model.info,
        name=model.name,
        ranker=model.info.kind,
        default_strategy=str(model.default_strategy),
        is_default=model.is_default,
        problem=model.problem,
        gives_relevance=model.gives_relevance,
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
