"""The server around the methods: health, reflection, and how it stops."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from rerank.errors import ConfigError
from rerank.models.encoder import Encoder
from rerank.rankers.identity import IdentityRanker
from rerank.registry import ModelRegistry
from rerank.reranker import AsyncReranker
from rerank.service.server import SERVICE, running_server
from rerank.v1 import rerank_pb2 as pb
from rerank.v1.rerank_pb2_grpc import RerankServiceStub
from tests.fakes import HeldRanker
from tests.serving import TIMEOUT_S, Served, config_for, numbered_candidates, refusal, serving

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
UNLIMITED = [("grpc.max_receive_message_length", -1)]


@dataclass(frozen=True)
class Held:
    """A service whose one model waits for `ranker.release`, and a channel to it."""

    served: Served
    ranker: HeldRanker
    channel: grpc.Channel

    @property
    def stub(self) -> RerankServiceStub:
        return RerankServiceStub(self.channel)

    def call_in_flight(self, **fields: object) -> grpc.Future:
        """A call that the model holds."""
        call = self.stub.Rerank.future(pb.RerankRequest(query="q", **fields), timeout=TIMEOUT_S)
        assert self.ranker.entered.wait(TIMEOUT_S)
        return call

    def drain(self, drain_s: float = TIMEOUT_S) -> Future[None]:
        return self.served.start(self.served.running.drain(drain_s))


@contextmanager
def held_service(encoder: Encoder) -> Iterator[Held]:
    ranker = HeldRanker()
    closed = AsyncReranker(
        config_for(["number"]), encoder, None, ModelRegistry(config_for(["number"]).models, {"number": ranker})
    )
    with serving(closed) as served, grpc.insecure_channel(served.address, options=UNLIMITED) as channel:
        try:
            yield Held(served, ranker, channel)
        finally:
            ranker.release.set()


def check(channel: grpc.Channel, service: str) -> int:
    request = health_pb2.HealthCheckRequest(service=service)
    return health_pb2_grpc.HealthStub(channel).Check(request, timeout=TIMEOUT_S).status


@pytest.mark.parametrize("name", ["", SERVICE])
def test_health_is_serving(channel: grpc.Channel, name: str) -> None:
    assert check(channel, name) == SERVING


def test_health_of_an_unknown_service_is_not_found(channel: grpc.Channel) -> None:
    assert refusal(lambda: check(channel, "no.such.Service")).code is grpc.StatusCode.NOT_FOUND


def test_reflection_lists_the_services_and_their_methods(channel: grpc.Channel) -> None:
    database = ProtoReflectionDescriptorDatabase(channel)
    assert {SERVICE, "grpc.health.v1.Health"} <= set(database.get_services())
    file = database.FindFileContainingSymbol(SERVICE)
    assert [method.name for method in file.service[0].method] == ["Rerank", "Search", "ListModels"]


def test_port_0_takes_a_free_one_and_says_which(service: Served) -> None:
    host, port = service.address.split(":")
    assert host == "127.0.0.1"
    assert int(port) > 0


@pytest.mark.parametrize(
    "listen",
    ["no host:1", "203.0.113.1:0", "127.0.0.1:no", "127.0.0.1:99999", "127.0.0.1:-1", "127.0.0.1", "localhost:"],
)
async def test_address_that_cannot_be_bound_is_named(encoder: Encoder, listen: str) -> None:
    config = config_for(["identity"]).model_copy(update={"listen": listen})
    closed = AsyncReranker(config, encoder, None, ModelRegistry(config.models, {"identity": IdentityRanker()}))
    with pytest.raises(ConfigError, match=f"cannot listen on {listen}: .*; choose another --listen HOST:PORT"):
        async with running_server(closed):
            pass


async def test_port_in_use_is_refused(service: Served, encoder: Encoder) -> None:
    config = config_for(["identity"]).model_copy(update={"listen": service.address})
    closed = AsyncReranker(config, encoder, None, ModelRegistry(config.models, {"identity": IdentityRanker()}))
    with pytest.raises(ConfigError, match=f"cannot listen on {service.address}"):
        async with running_server(closed):
            pass


def test_drain_tells_health_first_refuses_new_calls_and_finishes_those_in_flight(encoder: Encoder) -> None:
    with held_service(encoder) as held:
        watch = health_pb2_grpc.HealthStub(held.channel).Watch(health_pb2.HealthCheckRequest(service=SERVICE))
        assert next(watch).status == SERVING
        call = held.call_in_flight(candidates=numbered_candidates([1, 2]))
        drained = held.drain()
        assert next(watch).status == NOT_SERVING
        assert refused_sooner_or_later(lambda: held.stub.ListModels(pb.ListModelsRequest(), timeout=TIMEOUT_S))
        assert check(held.channel, "") == NOT_SERVING
        assert not call.done()
        held.ranker.release.set()
        assert [result.doc_id for result in call.result(TIMEOUT_S).results] == ["d1", "d0"]
        drained.result(TIMEOUT_S)  # though the watch is still open


def refused_sooner_or_later(call: Callable[[], object]) -> bool:
    """Whether calls get UNAVAILABLE; those that arrive before the drain has got there may be answered."""
    for _ in range(1000):
        try:
            call()
        except grpc.RpcError as error:
            return error.code() is UNAVAILABLE
    return False


def test_large_answers_in_flight_arrive_whole(encoder: Encoder) -> None:
    text = "x" * 190_000
    candidates = [pb.Candidate(doc_id=f"d{number}", text=text) for number in range(50)]
    for _ in range(3):
        with held_service(encoder) as held:
            call = held.call_in_flight(candidates=candidates, return_passages=True)
            drained = held.drain()
            held.ranker.release.set()
            assert sum(len(result.text) for result in call.result(TIMEOUT_S).results) == 50 * len(text)
            drained.result(TIMEOUT_S)


def test_call_that_outlasts_the_drain_is_cut_off(encoder: Encoder) -> None:
    for _ in range(3):
        with held_service(encoder) as held:
            call = held.call_in_flight(candidates=numbered_candidates([1, 2]))
            held.drain(drain_s=0.1).result(TIMEOUT_S)
            assert refusal(call.result).code is UNAVAILABLE


def test_idle_server_drains_at_once(encoder: Encoder) -> None:
    with held_service(encoder) as held:
        held.drain().result(TIMEOUT_S / 2)
        assert refusal(lambda: check(held.channel, "")).code is UNAVAILABLE
