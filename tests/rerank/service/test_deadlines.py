"""Admission, deadlines and partial answers over a real socket."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import grpc
import pytest
from google.rpc import error_details_pb2

from rerank.engine.admission import ModelStage, Stage
from rerank.models.encoder import Encoder
from rerank.registry import ModelRegistry
from rerank.reranker import AsyncReranker
from rerank.v1 import rerank_pb2 as pb
from rerank.v1.rerank_pb2_grpc import RerankServiceStub
from tests.fakes import HeldRanker
from tests.serving import TIMEOUT_S, Served, config_for, numbered_candidates, refusal, serving

#: Nine windows of 20 tokens.
CANDIDATES = numbered_candidates(range(10))
WINDOWS = pb.Strategy(window_size=2, stride=1)


class Held:
    """A service over one held ranker, and its client."""

    def __init__(self, served: Served, stub: RerankServiceStub, ranker: HeldRanker, reranker: AsyncReranker) -> None:
        self.stub = stub
        self.ranker = ranker
        self._served = served
        self._engine = reranker._engine

    def request(self, **fields: object) -> pb.RerankRequest:
        return pb.RerankRequest(**{"query": "q", "candidates": CANDIDATES, "strategy": WINDOWS} | fields)

    def start(self) -> grpc.Future:
        """A call whose first window is held."""
        call = self.stub.Rerank.future(self.request(), timeout=TIMEOUT_S)
        assert self.ranker.entered.wait(TIMEOUT_S)
        return call

    def measure(self, tokens_per_s: float) -> None:
        """As if this rate had been measured."""

        async def observe() -> None:
            for _ in range(2):  # the first one does not count
                now_s = asyncio.get_running_loop().time()
                self._engine.throughput.observe(ModelStage(Stage.RANK, "number"), tokens_per_s, 1.0, now_s)

        self._served.wait(observe())


@contextmanager
def held_service(encoder: Encoder, free_batches: int = 0, **engine: object) -> Iterator[Held]:
    ranker = HeldRanker(free_batches)
    reranker = AsyncReranker(
        config_for(["number"], engine=engine),
        encoder,
        None,
        ModelRegistry(config_for(["number"], engine=engine).models, {"number": ranker}),
    )
    with serving(reranker) as served, grpc.insecure_channel(served.address) as channel:
        try:
            yield Held(served, RerankServiceStub(channel), ranker, reranker)
        finally:
            ranker.release.set()


@pytest.mark.parametrize("windows_done", [0, 3])
def test_partial_answer_reaches_the_caller_before_the_deadline(encoder: Encoder, windows_done: int) -> None:
    with held_service(encoder, free_batches=windows_done, answer_margin_s=0.5) as held:
        reply = held.stub.Rerank(held.request(allow_partial=True), timeout=1.5)
    assert reply.execution.completeness == (pb.COMPLETENESS_PARTIAL if windows_done else pb.COMPLETENESS_NONE)
    assert reply.execution.reason == f"the deadline came after {windows_done} of 9 windows of sliding(2/1)"
    assert reply.execution.windows == windows_done
    climbed = 9 - windows_done  # the last candidate is the best and climbs by one a window
    rest = [position for position in range(10) if position != 9]
    assert [result.original_position for result in reply.results] == [*rest[:climbed], 9, *rest[climbed:]]


def test_without_leave_a_partial_answer_is_an_error(encoder: Encoder) -> None:
    with held_service(encoder, free_batches=3, answer_margin_s=0.5) as held:
        assert refusal(lambda: held.stub.Rerank(held.request(), timeout=0.5)).code is grpc.StatusCode.DEADLINE_EXCEEDED


def test_deadline_that_cannot_be_met_is_refused_at_once(encoder: Encoder) -> None:
    """18 s of work, 10 s of time; nothing runs, and nobody waits for 10 s."""
    with held_service(encoder) as held:
        held.measure(tokens_per_s=10.0)
        refused = refusal(lambda: held.stub.Rerank(held.request(), timeout=10))
    assert (refused.code, refused.reason) == (grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED")
    assert "18000 ms of work remain and the deadline is in" in refused.message
    assert not held.ranker.entered.is_set()


def test_queue_that_makes_a_request_late_is_an_overload_that_says_when_to_come_back(encoder: Encoder) -> None:
    with held_service(encoder) as held:
        first = held.start()
        held.measure(tokens_per_s=10.0)
        refused = refusal(lambda: held.stub.Rerank(held.request(), timeout=25))
        held.ranker.release.set()
        assert len(first.result().results) == 10
    assert (refused.code, refused.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED")
    assert "180 tokens are queued" in refused.message
    assert refused.detail(error_details_pb2.RetryInfo).retry_delay.seconds == 18


def test_full_queue_is_an_overload(encoder: Encoder) -> None:
    with held_service(encoder, max_queue_tokens=200) as held:
        first = held.start()
        refused = refusal(lambda: held.stub.Rerank(held.request(), timeout=TIMEOUT_S))
        held.ranker.release.set()
        assert len(first.result().results) == 10
    assert refused.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "180 tokens are queued; 180 more exceed the limit of 200" in refused.message
    assert refused.detail(error_details_pb2.RetryInfo).retry_delay.seconds == 1


def test_cancelled_call_makes_room(encoder: Encoder) -> None:
    with held_service(encoder, max_queue_tokens=200) as held:
        first = held.start()
        first.cancel()
        until(lambda: not held._engine._admission.queued_tokens)
        second = held.stub.Rerank.future(held.request(), timeout=TIMEOUT_S)
        held.ranker.release.set()
        assert len(second.result().results) == 10


def until(condition: Callable[[], bool]) -> None:
    """Returns once the condition holds."""
    tick = threading.Event()
    for _ in range(100 * TIMEOUT_S):
        if condition():
            return
        tick.wait(0.01)
    raise AssertionError("never")
