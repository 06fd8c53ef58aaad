"""The server: health, reflection, addresses, and the graceful shutdown."""

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from rerank.errors import ConfigError
from rerank.names import SERVICE
from rerank.ports.server import running_server
from tests.serving import REQUEST, TIMEOUT_S, held_service, refusal, reranker_of

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


def check(channel: grpc.Channel, service: str) -> int:
    request = health_pb2.HealthCheckRequest(service=service)
    return health_pb2_grpc.HealthStub(channel).Check(request, timeout=TIMEOUT_S).status


@pytest.mark.parametrize("name", ["", SERVICE])
def test_health_is_serving(channel, name):
    assert check(channel, name) == SERVING


def test_health_of_an_unknown_service_is_not_found(channel):
    assert refusal(lambda: check(channel, "no.such.Service")).code is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize(
    "listen",
    ["no host:1", "203.0.113.1:0", "127.0.0.1:no", "127.0.0.1:99999", "127.0.0.1:-1", "127.0.0.1", "localhost:"],
)
async def test_address_that_cannot_be_bound_is_refused(listen):
    with pytest.raises(ConfigError, match=f"cannot listen on {listen}: .*; choose another --listen HOST:PORT"):
        async with running_server(reranker_of(listen=listen)):
            pass


def test_drain_is_told_to_those_who_watch_and_does_not_wait_for_them():
    with held_service() as held:
        watch = health_pb2_grpc.HealthStub(held.channel).Watch(health_pb2.HealthCheckRequest(service=SERVICE))
        assert next(watch).status == SERVING
        call = held.start_call(candidates=REQUEST.candidates)
        drained = held.start(held.server.drain(TIMEOUT_S))
        assert next(watch).status == NOT_SERVING
        assert not call.done()
        held.ranker.release.set()
        drained.result(TIMEOUT_S)
