"""Converts messages of rerank.v1 to requests, and rankings, search results and models to messages.

The service itself checks the values of requests.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from operator import attrgetter
from typing import TypeVar

from rerank.errors import InvalidRequest, reason_of
from rerank.names import DEFAULT_FIRST_STAGE
from rerank.protobuf.fields import (
    COMPLETENESS,
    FEEDBACK_METHODS,
    FIRST_STAGE_KINDS,
    FIRST_STAGES,
    ON_FAILURE,
    SCORE_KINDS,
    STRATEGIES,
)
from rerank.reranking.registry import ModelDescription
from rerank.reranking.reranker import AsyncReranker, SearchResult
from rerank.retrieval.index import IndexManifest
from rerank.service.requests import RerankRequest, SearchRequest
from rerank.types import (
    FeedbackSettings,
    FirstStageWeight,
    Passage,
    Query,
    RankedCandidate,
    Ranking,
    RankOptions,
    Trace,
    WindowTrace,
)
from rerank.v1 import rerank_pb2 as pb

T = TypeVar("T")
U = TypeVar("U")

#: Largest number of passages in all windows of a trace, some 100 kB. Sliding windows over 1,000 candidates hold 2,000.
MAX_PASSAGES = 10_000


def rerank_request(message: pb.RerankRequest) -> RerankRequest:
    """The request in a message. The caller must have checked the number of candidates.

    Raises: InvalidRequest for an unknown enum value, or a candidate with neither text nor in_index.
    """
    return RerankRequest(
        Query(message.query, instruction=message.instruction),
        [_passage(candidate, index) for index, candidate in enumerate(message.candidates)],
        _options(message, ordered=message.ordered or not message.HasField("ordered")),
    )


def search_request(message: pb.SearchRequest) -> SearchRequest:
    """The request in a message. Raises: InvalidRequest for an unknown enum value."""
    return SearchRequest(
        Query(message.query, instruction=message.instruction),
        _options(message),
        _enum_member("first_stage", message.first_stage, FIRST_STAGES, DEFAULT_FIRST_STAGE),
        message.depth,
        _feedback(message.feedback) if message.HasField("feedback") else None,
    )


def _passage(message: pb.Candidate, index: int) -> Passage:
    if not (message.in_index or message.HasField("text")):
        problem = "neither text nor in_index is set; send the text, or set in_index to read it from the index"
        raise InvalidRequest(f"candidates[{index}].text", problem)
    score = message.first_stage_score if message.HasField("first_stage_score") else None
    return Passage(message.doc_id, message.text, score, message.title, in_index=message.in_index)


def _options(message: pb.RerankRequest | pb.SearchRequest, ordered: bool = True) -> RankOptions:
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
        ordered=ordered,
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
    if not number:
        return unspecified
    for member, value in numbers.items():
        if value == number:
            return member
    known = sorted({0, *numbers.values()})
    raise InvalidRequest(field, f"{number} is not a value of this enum in rerank.v1; use one of {known}")


def rerank_response(ranking: Ranking, request: pb.RerankRequest | pb.SearchRequest) -> pb.RerankResponse:
    """The response to a request, with the texts of the passages and the trace if it asks for them."""
    return pb.RerankResponse(
        results=[_result(item, request.return_passages) for item in ranking.ranked],
        score_kind=SCORE_KINDS[ranking.score_kind],
        execution=_execution(ranking.trace),
        trace=trace_message(ranking.trace) if request.include_trace else None,
    )


def search_response(result: SearchResult, request: pb.SearchRequest) -> pb.RerankResponse:
    """The response to a search, with the texts of the passages and the trace if it asks for them."""
    response = rerank_response(result.ranking, request)
    response.first_stage_hits = result.hits
    if report := result.feedback:
        response.feedback.MergeFrom(pb.FeedbackReport(reason=report.reason, cosine=report.cosine))
    return response


def list_models_response(reranker: AsyncReranker) -> pb.ListModelsResponse:
    """The models of the service, the default one first, and its index."""
    index = _index(reranker.index.manifest) if reranker.index else None
    return pb.ListModelsResponse(models=[_model(model) for model in reranker.models()], index=index)


def trace_message(trace: Trace) -> pb.Trace:
    """The trace of a ranking, cut to MAX_PASSAGES passages."""
    windows = [_window(window) for window in _first_windows(trace.windows)]
    return pb.Trace(windows=windows, input_order=trace.input_order)


def _result(item: RankedCandidate, return_passages: bool) -> pb.RankedCandidate:
    passage = item.passage
    return pb.RankedCandidate(
        doc_id=passage.doc_id,
        original_position=item.position,
        score=item.score,
        first_stage_score=item.passage.score,
        text=passage.text[passage.prefix_chars :] if return_passages else None,
        title=passage.title if return_passages and passage.prefix_chars else "",
        relevance=item.relevance,
        span=None if item.span is None else pb.Span(start=item.span[0], end=item.span[1]),
    )


def _execution(trace: Trace) -> pb.Execution:
    return pb.Execution(
        model=trace.model,
        strategy=trace.strategy,
        windows=len(trace.windows),
        rounds=trace.rounds,
        tokens=trace.tokens,
        decode_tokens=sum(map(attrgetter("decode_tokens"), trace.windows)),
        decode_ms=trace.decode_ms,
        truncated_doc_ids=trace.truncated_doc_ids,
        completeness=COMPLETENESS[trace.completeness],
        reason=trace.reason,
        queue_ms=trace.queue_ms,
        prepare_ms=trace.prepare_ms,
        model_ms=trace.model_ms,
        total_ms=trace.total_ms,
        repaired_identifiers=trace.repairs,
        generated_identifiers=trace.generated,
        first_stage_weight=trace.first_stage_weight,
        kendall_tau=trace.kendall_tau,
        model_warning=trace.model_warning,
        failure=reason_of(trace.failure) if trace.failure else "",
        query_truncated=trace.query_truncated,
        cosines=trace.cosines,
        prompt=trace.prompt,
    )


def _model(model: ModelDescription) -> pb.Model:
    info = model.info
    return pb.Model(
        name=model.name,
        ranker=info.kind,
        model_id=info.model_id,
        model_revision=info.model_revision,
        template_sha256=info.template_sha256,
        max_window_size=info.max_window_size,
        default_strategy=str(model.default_strategy),
        problem=model.problem,
        warning=info.warning,
        reads_instruction=info.reads_instruction,
        gives_relevance=model.gives_relevance,
        is_loaded=model.is_loaded,
        load_s=model.load_s,
        memory_bytes=model.memory_bytes,
        gpu_memory_bytes=model.gpu_memory_bytes,
    )


def _index(manifest: IndexManifest) -> pb.Index:
    return pb.Index(collection=manifest.collection, passages=manifest.passages, encoder=manifest.encoder.name)


def _first_windows(windows: Sequence[WindowTrace]) -> Sequence[WindowTrace]:
    passages = list(accumulate(len(window.positions) for window in windows))
    return windows[: bisect_right(passages, MAX_PASSAGES)]


def _window(window: WindowTrace) -> pb.WindowTrace:
    return pb.WindowTrace(
        round=window.round,
        model=window.model,
        positions=window.positions,
        scores=window.scores,
        permutation=window.permutation,
        tokens=window.tokens,
        model_ms=window.model_ms,
        score_kind=SCORE_KINDS[window.score_kind],
    )
