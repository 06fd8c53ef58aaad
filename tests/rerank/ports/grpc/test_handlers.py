"""gRPC's handlers: statuses, keys, and the answers of streams, bounded in number, size and time."""

import asyncio
import math
import threading
from collections.abc import Iterator
from typing import Any
from unittest.mock import AsyncMock, Mock

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_reflection.v1alpha.reflection import SERVICE_NAME as REFLECTION

from rerank.access.keys import CallerLimits, add_key
from rerank.client import Credentials
from rerank.errors import InvalidRequest
from rerank.names import LIVENESS, SERVICE
from rerank.ports.grpc.handlers import GrpcCall, abort
from rerank.v1 import rerank_pb2 as pb
from scripts.http2_frames import call, message, preface
from tests.serving import RERANK, TIMEOUT_S, refusal, running_service

EXHAUSTED, UNAUTHENTICATED = grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAUTHENTICATED


def watch(channel: grpc.Channel, service: str = "") -> Any:
    """A watch of the health, after its first status has come."""
    statuses = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=service))
    next(statuses)
    return statuses


LIST = reflection_pb2.ServerReflectionRequest(list_services="")


def reflected(channel: grpc.Channel, requests: Iterator[Any], **options: Any) -> Any:
    return reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(requests, **options)


def described(channel: grpc.Channel, *names: str) -> Any:
    """The answers of a stream of reflection about these symbols."""
    requests = [reflection_pb2.ServerReflectionRequest(file_containing_symbol=name) for name in names]
    return reflected(channel, iter(requests), timeout=TIMEOUT_S)


def open_stream(channel: grpc.Channel) -> Any:
    """A stream of reflection that sends one request and then nothing."""

    def requests() -> Iterator[Any]:
        yield LIST
        threading.Event().wait(TIMEOUT_S)

    return reflected(channel, requests())


def test_watch_tells_the_status_of_models_and_of_the_process():
    with running_service() as served:
        stub = health_pb2_grpc.HealthStub(served.channel)
        for service, status in {"": "SERVING", LIVENESS: "SERVING", "other": "SERVICE_UNKNOWN"}.items():
            answer = next(stub.Watch(health_pb2.HealthCheckRequest(service=service)))
            assert health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status) == status


def test_watches_of_a_connection_are_bounded_and_leave_checks_alone(monkeypatch):
    monkeypatch.setattr("rerank.ports.grpc.handlers._WATCHES", 10)
    with running_service() as served:
        watches = [watch(served.channel) for _ in range(10)]
        assert refusal(lambda: watch(served.channel)).code is EXHAUSTED
        assert served.health == "SERVING"
        watches.pop().cancel()


def test_reflection_describes_the_service_by_one_file():
    with running_service() as served:
        found, missing = described(served.channel, SERVICE, "none")
        assert len(found.file_descriptor_response.file_descriptor_proto) == 1
        assert missing.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]


def test_long_names_are_refused_by_health_checks_watches_and_reflection():
    name = "x" * 5000
    with running_service() as served:
        check = health_pb2_grpc.HealthStub(served.channel).Check
        for ask in (
            lambda: next(described(served.channel, name)),
            lambda: watch(served.channel, name),
            lambda: check(health_pb2.HealthCheckRequest(service=name), timeout=TIMEOUT_S),
        ):
            error = refusal(ask)
            assert error.code is grpc.StatusCode.INVALID_ARGUMENT
            assert "bytes exceed the limit of 4096; send the name of a service or symbol" in error.message


def test_streams_of_reflection_are_bounded_and_silent_ones_end(monkeypatch):
    monkeypatch.setattr("rerank.ports.grpc.handlers._REFLECTIONS", 2)
    with running_service(limits={"max_transfer_s": 0.5}) as served:
        streams = list[Any]()
        for _ in range(2):
            streams.append(open_stream(served.channel))
            assert SERVICE in [service.name for service in next(streams[-1]).list_services_response.service]
        assert refusal(lambda: next(open_stream(served.channel))).code is EXHAUSTED
        for stream in streams:
            assert "did not arrive in time" in refusal(lambda stream=stream: next(stream)).message
        assert next(open_stream(served.channel))


def test_connection_that_does_not_read_answers_of_reflection_ends():
    """Its client allows no byte of an answer, by its settings."""
    request = reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE).SerializeToString()
    with running_service(limits={"max_transfer_s": 0.3}) as served, served.connect() as unread:
        unread.sendall(preface(window=0) + call(1, f"/{REFLECTION}/ServerReflectionInfo") + message(1, request))
        while unread.recv(65_536):
            pass


async def test_status_of_a_call_whose_connection_ended_is_no_failure():
    context = AsyncMock()
    context.abort.side_effect = grpc.aio.InternalError("execute_batch")  # gRPC cannot send its status
    with pytest.raises(asyncio.CancelledError, match="the connection ended before the call"):
        await abort(context, InvalidRequest("query", "is empty"))


def test_message_of_a_stranger_is_not_read_and_two_keys_are_none(tmp_path):
    key = add_key(tmp_path / "keys.yaml", "a", CallerLimits())
    with running_service(keys=tmp_path / "keys.yaml") as served:
        garbage = served.channel.unary_unary(RERANK)
        assert refusal(lambda: garbage(b"\xff" * 1000, timeout=TIMEOUT_S)).code is UNAUTHENTICATED
        twice, request = Credentials(api_key=key).metadata * 2, pb.ListModelsRequest()
        assert (
            refusal(lambda: served.stub.ListModels(request, timeout=TIMEOUT_S, metadata=twice)).code is UNAUTHENTICATED
        )


@pytest.mark.parametrize(("has_keys", "refused"), [(True, grpc.StatusCode.UNIMPLEMENTED), (False, None)])
def test_with_keys_reflection_is_off(tmp_path, has_keys, refused):
    keys = tmp_path / "keys.yaml"
    key = add_key(keys, "a", CallerLimits())
    credentials = Credentials(api_key=key if has_keys else None)
    with running_service(keys=keys if has_keys else None) as served:
        answers = reflected(served.channel, iter([LIST]), metadata=credentials.metadata, timeout=TIMEOUT_S)
        if refused is None:
            assert SERVICE in [service.name for service in next(answers).list_services_response.service]
        else:
            assert refusal(lambda: next(answers)).code is refused


@pytest.mark.parametrize("remaining_s", [None, 7.0])
async def test_deadline_is_that_of_the_client(remaining_s):
    context = Mock()
    context.peer.return_value, context.time_remaining.return_value = "ipv4:127.0.0.1:1", remaining_s
    context.invocation_metadata.return_value = ()
    received = GrpcCall(context, Mock(), lambda _: None)
    left_s = received.deadline_s - asyncio.get_running_loop().time()
    assert left_s == (math.inf if remaining_s is None else pytest.approx(7, abs=1))
