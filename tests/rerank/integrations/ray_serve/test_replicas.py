"""Replicas on Ray Serve: deadlines reach them; those that are killed or replaced under load leave right answers or
UNAVAILABLE."""

import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import pytest

from rerank.errors import ConfigError
from rerank.v1 import rerank_pb2 as pb
from rerank.v1.rerank_pb2_grpc import RerankServiceStub
from tests.rerank.integrations.ray_serve.replicas import load_fakes, ray_config, replica_pids
from tests.serving import TIMEOUT_S, numbered_candidates, refusal, wait_for

pytest.importorskip("ray", reason="needs the extra ray; `make ray-tests` installs it")
pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]

REQUEST = pb.RerankRequest(query="q", candidates=numbered_candidates([3, 1, 2]), model="number")
CALLERS = 8
#: Seconds that a replica may take to start on a busy machine.
START_S = 240


def deploy_models(port: int, names: list[str], replicas: int = 2) -> None:
    from rerank.integrations.ray_serve.application import Scale, check, deploy

    config = ray_config(names, port)
    check(config)
    deploy(config, Scale(replicas), load=load_fakes)


def outcome(stub: RerankServiceStub) -> str:
    """ "right", "wrong", or the name of the status."""
    try:
        reply = stub.Rerank(REQUEST, timeout=TIMEOUT_S)
    except grpc.RpcError as error:
        return error.code().name
    return "right" if [result.doc_id for result in reply.results] == ["d0", "d2", "d1"] else "wrong"


@contextmanager
def load(stub: RerankServiceStub) -> Iterator[Counter[str]]:
    """Counts the outcomes of callers that ask again and again until the block ends."""
    outcomes: Counter[str] = Counter()
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            outcomes[outcome(stub)] += 1

    with ThreadPoolExecutor(CALLERS) as pool:
        callers = [pool.submit(ask) for _ in range(CALLERS)]
        try:
            yield outcomes
        finally:
            stop.set()
    for caller in callers:
        caller.result()


@pytest.fixture
def stub(ray_port: int) -> Iterator[RerankServiceStub]:
    """A stub of two replicas with the model number."""
    deploy_models(ray_port, ["number"])
    with grpc.insecure_channel(f"127.0.0.1:{ray_port}") as channel:
        yield RerankServiceStub(channel)


def served_models(stub: RerankServiceStub) -> list[str]:
    return [model.name for model in stub.ListModels(pb.ListModelsRequest(), timeout=TIMEOUT_S).models]


def test_killed_replica_leaves_only_right_answers_and_unavailable_and_comes_back(stub):
    wait_for(lambda: len(replica_pids()) == 2, START_S)
    before = replica_pids()
    with load(stub) as outcomes:
        wait_for(lambda: outcomes["right"] > 50)
        killed = before.pop()
        os.kill(killed, signal.SIGKILL)
        wait_for(lambda: killed not in replica_pids() and len(replica_pids()) == 2, START_S)
        answered = outcomes["right"]
        wait_for(lambda: outcomes["right"] > answered + 50)
    assert outcomes.keys() <= {"right", "UNAVAILABLE"}, outcomes
    assert before < replica_pids()  # the other one was left alone


def test_update_to_a_second_model_loses_no_call(stub, ray_port):
    before = replica_pids()
    with load(stub) as outcomes:
        wait_for(lambda: outcomes["right"] > 50)
        deploy_models(ray_port, ["number", "second"])
        answered = outcomes["right"]
        wait_for(lambda: outcomes["right"] > answered + 50)
    assert outcomes.keys() == {"right"}, outcomes
    assert served_models(stub) == ["number", "second"]
    wait_for(lambda: not before & replica_pids(), START_S)


def test_update_to_a_model_that_fails_its_self_test_keeps_the_replicas(stub, ray_port):
    with load(stub) as outcomes, pytest.raises(ConfigError, match=r"(?s)did not start.*its scores are wrong"):
        deploy_models(ray_port, ["broken"])
    assert outcomes.keys() == {"right"}, outcomes
    assert served_models(stub) == ["number"]


#: Nine windows of 20 tokens each.
LONG_REQUEST = pb.RerankRequest(
    query="q", candidates=numbered_candidates(range(10)), strategy=pb.Strategy(window_size=2, stride=1)
)


@contextmanager
def only_replica(port: int, model: str) -> Iterator[RerankServiceStub]:
    """A stub of one replica with this model, which takes the place of the ones deployed before."""
    deploy_models(port, [model], replicas=1)
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield RerankServiceStub(channel)


def test_partial_answer_arrives_before_the_deadline_of_the_caller(ray_port):
    partial = pb.RerankRequest(allow_partial=True)
    partial.MergeFrom(LONG_REQUEST)
    with only_replica(ray_port, "held") as stub:
        reply = stub.Rerank(partial, timeout=3.0)
        late = refusal(lambda: stub.Rerank(LONG_REQUEST, timeout=0.3))
    assert reply.execution.completeness == pb.COMPLETENESS_NONE
    assert reply.execution.reason == "the deadline came after 0 of 9 windows of sliding(2/1)"
    assert late.code is grpc.StatusCode.DEADLINE_EXCEEDED


def test_caller_cannot_set_the_deadline_that_the_proxy_passes_on(ray_port):
    from rerank.integrations.ray_serve.proxy import TIME_REMAINING

    with only_replica(ray_port, "number") as stub:
        reply = stub.Rerank(LONG_REQUEST, timeout=TIMEOUT_S, metadata=[(TIME_REMAINING, "0")])
    assert reply.results[0].doc_id == "d9"
