"""Rankings, search results and models as messages: every field is converted."""

from __future__ import annotations

import math
from dataclasses import replace

from rerank.protobuf.messages import rerank_response
from rerank.types import Completeness, Passage, RankedCandidate, Ranking, ScoreKind, WindowTrace
from rerank.v1 import rerank_pb2 as pb
from tests.traces import trace_of


def reply_of(ranked: Ranking, return_passages: bool = False) -> pb.RerankResponse:
    return rerank_response(ranked, pb.RerankRequest(return_passages=return_passages))


def ranking(score_kind: ScoreKind = ScoreKind.WINDOW_LOG_PROB) -> Ranking:
    """Two of three candidates, the first of them without a first-stage score."""
    ranked = (
        RankedCandidate(Passage("b", "text of b"), 1, -0.25),
        RankedCandidate(Passage("a", "text of a", 7.5), 0, -1.5),
    )
    windows = (
        WindowTrace((1, 2), (0, 1), 30, cosines=(0.5, math.nan)),
        WindowTrace((0, 1), (1, 0), 31, cosines=(math.nan, 0.5)),
    )
    trace = trace_of(
        model="m",
        strategy="sliding(2/1)",
        windows=windows,
        rounds=2,
        truncated_doc_ids=("b", "c"),
        query_truncated=True,
        repairs=3,
        generated=4,
        completeness=Completeness.PARTIAL,
        reason="because",
        queue_ms=1.0,
        prepare_ms=2.0,
        model_ms=3.0,
        total_ms=4.0,
    )
    return Ranking(ranked, score_kind, trace)


def test_trace_becomes_execution() -> None:
    ranked = ranking()
    ranked = replace(ranked, trace=replace(ranked.trace, model_warning="another prompt"))
    assert reply_of(ranked).execution == pb.Execution(
        model="m",
        model_warning="another prompt",
        strategy="sliding(2/1)",
        windows=2,
        rounds=2,
        tokens=61,
        truncated_doc_ids=["b", "c"],
        query_truncated=True,
        cosines=1,
        completeness=pb.COMPLETENESS_PARTIAL,
        reason="because",
        queue_ms=1.0,
        prepare_ms=2.0,
        model_ms=3.0,
        total_ms=4.0,
        repaired_identifiers=3,
        generated_identifiers=4,
    )


def test_models_that_read_no_cosines_tell_no_number_of_them() -> None:
    ranked = ranking()
    without = replace(ranked.trace, windows=(WindowTrace((0, 1), (0, 1), 30),))
    assert not reply_of(replace(ranked, trace=without)).execution.HasField("cosines")
