"""Rankings, search results and models as messages of rerank.v1, field by field."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from rerank.errors import reason_of
from rerank.protobuf.enums import COMPLETENESS, SCORE_KINDS
from rerank.reranking.registry import ModelDescription
from rerank.reranking.reranker import AsyncReranker, SearchResult
from rerank.retrieval.index import IndexManifest
from rerank.types import RankedCandidate, Ranking, Trace, WindowTrace
from rerank.v1 import rerank_pb2 as pb

#: Passages in all windows of a trace: some 100 kB. Sliding windows over 1,000 candidates hold 2,000.
MAX_PASSAGES = 10_000


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
        decode_tokens=sum(window.decode_tokens for window in trace.windows),
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
    )
