"""Rankings, their traces, search results and models as messages: every field is converted."""

import math

import pytest

from rerank.protobuf.messages import MAX_PASSAGES, rerank_response, trace_message
from rerank.types import Completeness, Passage, RankedCandidate, Ranking, ScoreKind, WindowTrace
from rerank.v1 import rerank_pb2 as pb
from tests.serving import TIMEOUT_S, numbered_candidates
from tests.traces import trace_of

#: Two of three candidates, the first of them without a first-stage score.
RANKED = (
    RankedCandidate(Passage("b", "text of b"), 1, -0.25),
    RankedCandidate(Passage("a", "text of a", 7.5), 0, -1.5, 0.0),
)
WINDOWS = (
    WindowTrace((1, 2), (0, 1), 30, cosines=(0.5, math.nan)),
    WindowTrace((0, 1), (1, 0), 31, cosines=(math.nan, 0.5)),
)


def reply_of(**trace: object) -> pb.RerankResponse:
    return rerank_response(Ranking(RANKED, ScoreKind.WINDOW_LOG_PROB, trace_of(**trace)), pb.RerankRequest())


def test_unknown_relevance_is_absent_and_not_0():
    assert [result.HasField("relevance") for result in reply_of().results] == [False, True]


def test_trace_becomes_execution():
    times = {"queue_ms": 1.0, "prepare_ms": 2.0, "model_ms": 3.0, "total_ms": 4.0}
    same = times | {"model": "m", "strategy": "sliding(2/1)", "rounds": 2, "truncated_doc_ids": ("b", "c")}
    same |= {"query_truncated": True, "reason": "because", "model_warning": "another prompt"}
    found = reply_of(**same, windows=WINDOWS, repairs=3, generated=4, completeness=Completeness.PARTIAL).execution
    numbers = {"windows": 2, "tokens": 61, "cosines": 1, "repaired_identifiers": 3, "generated_identifiers": 4}
    assert found == pb.Execution(**same, **numbers, completeness=pb.COMPLETENESS_PARTIAL)


def test_models_that_read_no_cosines_tell_no_number_of_them():
    assert not reply_of(windows=(WindowTrace((0, 1), (0, 1), 30),)).execution.HasField("cosines")


def test_every_field_of_a_window_is_converted():
    window = WindowTrace((4, 2), (1, 0), 30, (-1.5, -0.5), ScoreKind.WINDOW_LOG_PROB, 3, "first", (1,), 2.0, 8.0)
    (message,) = trace_message(trace_of(windows=(window,))).windows
    assert message == pb.WindowTrace(
        round=3,
        model="first",
        positions=[4, 2],
        scores=[-1.5, -0.5],
        permutation=[1, 0],
        tokens=30,
        model_ms=8.0,
        score_kind=pb.SCORE_KIND_WINDOW_LOG_PROB,
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
def test_trace_is_bounded_and_ends_before_the_window_that_exceeds_the_bound(sizes, kept):
    windows = [WindowTrace(tuple(range(size)), tuple(range(size)), 1, (0.0,) * size) for size in sizes]
    message = trace_message(trace_of(windows=tuple(windows)))
    assert [len(window.positions) for window in message.windows] == sizes[:kept]
    assert message.ByteSize() < 200_000


def test_window_with_a_first_stage_keeps_the_models_own_scores(stub):
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


def test_trace_of_a_search_with_feedback_counts_positions_as_the_results_do(stub):
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
