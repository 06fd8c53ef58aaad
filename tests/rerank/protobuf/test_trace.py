"""The trace of a ranking as a message, and through a service."""

from __future__ import annotations

import pytest

from rerank.protobuf.messages import MAX_PASSAGES, trace_message
from rerank.types import ScoreKind, WindowTrace
from rerank.v1 import rerank_pb2 as pb
from rerank.v1.rerank_pb2_grpc import RerankServiceStub
from tests.serving import TIMEOUT_S, numbered_candidates
from tests.traces import trace_of


def window_of(passages: int) -> WindowTrace:
    return WindowTrace(tuple(range(passages)), tuple(range(passages)), 1, (0.0,) * passages)


def test_every_field_of_a_window_is_converted() -> None:
    window = WindowTrace((4, 2), (1, 0), 30, (-1.5, -0.5), ScoreKind.WINDOW_LOG_PROB, 3, "first", (1,), 2.0, 8.0)
    (message,) = trace_message(trace_of(windows=(window,))).windows
    assert message == pb.WindowTrace(
        round=3, model="first", positions=[4, 2], scores=[-1.5, -0.5], permutation=[1, 0], tokens=30, model_ms=8.0
    )


@pytest.mark.parametrize(
    ("sizes", "kept"),
    [
        ([MAX_PASSAGES], 1),
        ([MAX_PASSAGES, 1], 1),
        ([MAX_PASSAGES - 1, 2, 1], 1),
        ([MAX_PASSAGES + 1], 0),
        ([20] * (MAX_PASSAGES // 20 + 7), MAX_PASSAGES // 20),
    ],
)
def test_trace_is_bounded_and_ends_before_the_window_that_exceeds_the_bound(sizes: list[int], kept: int) -> None:
    message = trace_message(trace_of(windows=tuple(map(window_of, sizes))))
    assert [len(window.positions) for window in message.windows] == sizes[:kept]
    assert message.ByteSize() < 200_000


def test_window_with_a_first_stage_keeps_the_models_own_scores(stub: RerankServiceStub) -> None:
    candidates = numbered_candidates([1, 2, 3])
    for place, candidate in enumerate(candidates):
        candidate.first_stage_score = -place
    weight = pb.FirstStageWeight(number=100)
    request = pb.RerankRequest(
        query="q", candidates=candidates, model="number", first_stage_weight=weight, include_trace=True
    )
    (window,) = stub.Rerank(request, timeout=TIMEOUT_S).trace.windows
    assert list(window.scores) == [1, 2, 3]
    assert list(window.permutation) == [0, 1, 2]


def test_trace_of_a_search_with_feedback_counts_positions_as_the_results_do(stub: RerankServiceStub) -> None:
    request = pb.SearchRequest(
        query="moon", first_stage=pb.FIRST_STAGE_DENSE, depth=4, include_trace=True, feedback=pb.Feedback(min_cosine=0)
    )
    reply = stub.Search(request, timeout=TIMEOUT_S)
    order = list(reply.trace.input_order)
    positions = [result.original_position for result in reply.results]
    assert sorted(order) == sorted(positions)
    assert len(positions) > 4, "this query must find something new, or the test shows nothing"
    assert order[4:] == list(range(4, len(positions)))
    assert list(reply.trace.windows[0].positions) == order[: len(reply.trace.windows[0].positions)]
