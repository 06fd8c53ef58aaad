"""Statuses, details, deadlines, cancelled calls and keys on Ray Serve: they reach the caller and the replica."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from rerank.v1 import rerank_pb2 as pb
from rerank.v1.rerank_pb2_grpc import RerankServiceStub
from tests.rerank.integrations.ray_serve.replicas import load_fakes, ray_config
from tests.serving import TIMEOUT_S, Refusal, numbered_candidates, refusal

pytest.importorskip("ray", reason="needs the extra ray; `make ray-tests` installs it")
pytestmark = pytest.mark.ray

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


def test_partial_answer_arrives_before_the_deadline_of_the_caller(ray_port: int) -> None:
    with deployed(ray_port, ["held"]) as stub:
        partial = pb.RerankRequest(query="q", candidates=REQUEST.candidates, strategy=WINDOWS, allow_partial=True)
        reply = stub.Rerank(partial, timeout=3.0)
        late = refused(stub, timeout_s=0.3)
    assert reply.execution.completeness == pb.COMPLETENESS_NONE
    assert reply.execution.reason == "the deadline came after 0 of 9 windows of sliding(2/1)"
    assert late.code is grpc.StatusCode.DEADLINE_EXCEEDED


def test_caller_cannot_set_the_deadline_that_the_proxy_passes_on(ray_port: int) -> None:
    from rerank.integrations.ray_serve.proxy import TIME_REMAINING

    with deployed(ray_port, ["number"]) as stub:
        reply = stub.Rerank(REQUEST, timeout=TIMEOUT_S, metadata=[(TIME_REMAINING, "0")])
    assert reply.results[0].doc_id == "d9"
