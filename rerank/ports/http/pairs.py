"""Pairs of a query and a text, which are ranked query by query, and answered as one list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rerank.types import Completeness, Ranking


def joined(rankings: Sequence[Ranking]) -> Ranking:
    """One ranking of the candidates of several, whose doc_ids are their places in the request; see `Form`."""
    traces = [ranking.trace for ranking in rankings]
    unfinished = next((trace for trace in traces if trace.completeness is not Completeness.FULL), traces[0])
    trace = replace(
        traces[0],
        windows=tuple(window for trace in traces for window in trace.windows),
        rounds=sum(trace.rounds for trace in traces),
        repairs=sum(trace.repairs for trace in traces),
        queue_ms=sum(trace.queue_ms for trace in traces),
        prepare_ms=sum(trace.prepare_ms for trace in traces),
        model_ms=sum(trace.model_ms for trace in traces),
        total_ms=sum(trace.total_ms for trace in traces),
        query_truncated=any(trace.query_truncated for trace in traces),
        truncated_doc_ids=tuple(doc_id for trace in traces for doc_id in trace.truncated_doc_ids),
        completeness=unfinished.completeness,
        reason=unfinished.reason,
        failure=next((trace.failure for trace in traces if trace.failure), None),
        model_warning="; ".join(dict.fromkeys(trace.model_warning for trace in traces if trace.model_warning)),
    )
    ranked = (replace(item, position=int(item.passage.doc_id)) for ranking in rankings for item in ranking.ranked)
    return Ranking(tuple(ranked), rankings[0].score_kind, trace)
