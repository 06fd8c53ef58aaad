"""Statuses, details, deadlines, cancelled calls and keys behind Ray Serve: they reach the caller and the replica."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2

from rerank.v1 import rerank_pb2 as pb
from rerank.v1.rerank_pb2_grpc import RerankServiceStub
from tests.rerank.integrations.ray_serve.replicas import load_fakes, ray_config
from tests.serving import TIMEOUT_S, Refusal, numbered_candidates, refusal, wait_for

pytest.importorskip("ray", reason="needs the extra ray; `make ray-tests` installs it")
pytestmark = pytest.mark.ray

EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
#: Nine windows of 20 tokens each.
WINDOWS = pb.Strategy(window_size=2, stride=1)
REQUEST = pb.RerankRequest(query="q", candidates=numbered_candidates(range(10)), strategy=WINDOWS)


@contextmanager
def deployed(port: int, names: list[str], **settings: Any) -> Iterator[RerankServiceStub]:
    """A stub of one replica with these settings, which takes the place of the one deployed before."""
    from rerank.integrations.ray_serve.application import Scale, check, deploy

    config = ray_config(names, port, **settings)
    check(config)
    deploy(config, Scale(), load=load_fakes)
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield RerankServiceStub(channel)


def refused(stub: RerankServiceStub, timeout_s: float = TIMEOUT_S, **call: Any) -> Refusal:
    return refusal(lambda: stub.Rerank(REQUEST, timeout=timeout_s, **call))


def is_full(stub: RerankServiceStub) -> bool:
    return refused(stub, timeout_s=1.0).code is EXHAUSTED


def overload_beside(stub: RerankServiceStub, calls: list[grpc.Future]) -> Refusal:
    """The refusal of a call once the replica is full. Adds `calls` until it is.

    Ray may lose or refuse a call while a new replica takes its place, and while it hands over another one.
    """
    refusals: list[Refusal] = []

    def is_overload() -> bool:
        calls.append(stub.Rerank.future(REQUEST, timeout=TIMEOUT_S))
        refusals.append(refused(stub, timeout_s=1.0))
        return refusals[-1].code is EXHAUSTED

    wait_for(is_overload)
    return refusals[-1]


def test_full_queue_is_an_overload_with_a_retry_delay_until_a_call_is_cancelled(ray_port: int) -> None:
    calls: list[grpc.Future] = []
    with deployed(ray_port, ["held"], engine={"max_queue_tokens": 200}) as stub:
        overload = overload_beside(stub, calls)
        for call in calls:
            call.cancel()
        wait_for(lambda: not is_full(stub))
    assert (overload.code, overload.reason) == (EXHAUSTED, "OVERLOADED")
    assert "exceed the limit of 200" in overload.message
    assert overload.detail(error_details_pb2.RetryInfo).retry_delay.seconds == 1


def test_partial_answer_arrives_before_the_deadline_of_the_caller(ray_port: int) -> None:
    with deployed(ray_port, ["held"], engine={"answer_margin_s": 3.0}) as stub:
        partial = pb.RerankRequest(query="q", candidates=REQUEST.candidates, strategy=WINDOWS, allow_partial=True)
        reply = stub.Rerank(partial, timeout=8.0)
        late = refused(stub, timeout_s=0.3)
    assert reply.execution.completeness == pb.COMPLETENESS_NONE
    assert reply.execution.reason == "the deadline came after 0 of 9 windows of sliding(2/1)"
    assert late.code is grpc.StatusCode.DEADLINE_EXCEEDED


def test_caller_cannot_set_the_deadline_that_the_proxy_passes_on(ray_port: int) -> None:
    from rerank.integrations.ray_serve.proxy import TIME_REMAINING

    with deployed(ray_port, ["number"]) as stub:
        reply = stub.Rerank(REQUEST, timeout=TIMEOUT_S, metadata=[(TIME_REMAINING, "0")])
    assert reply.results[0].doc_id == "d9"
