"""Failed calls that a client sends again: which, how often, and after how long."""

import threading
import time
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from grpc_status import rpc_status

from rerank.access.credentials import Credentials
from rerank.client.client import AsyncRerankClient, RerankClient
from rerank.client.error_details import ServiceError
from rerank.client.retries import Attempts
from rerank.errors import InvalidRequest, Overloaded, RerankError
from rerank.protobuf.status import status_of
from rerank.v1 import rerank_pb2 as pb
from tests.certificates import Authority
from tests.rerank.client.either_client import Client, server_of, serving_methods
from tests.serving import TIMEOUT_S, EndOfCall, free_port, http_service, running_service

BUSY = Overloaded("the queue is full; retry in 0.05 s", 0.05)


class Failing:
    """ListModels that fails the first calls with these errors, and answers the next one."""

    def __init__(self, *errors: RerankError | grpc.StatusCode) -> None:
        self.errors, self.calls = list(errors), 0

    def __call__(self, request: pb.ListModelsRequest, context: grpc.ServicerContext) -> pb.ListModelsResponse:
        self.calls += 1
        if not self.errors:
            return pb.ListModelsResponse(models=[pb.Model(name="m")])
        error = self.errors.pop(0)
        if isinstance(error, RerankError):
            context.abort_with_status(rpc_status.to_status(status_of(error)))
        return context.abort(error, "from gRPC itself")


@pytest.fixture(params=[RerankClient, AsyncRerankClient])
def call(request: pytest.FixtureRequest) -> Callable[..., pb.ListModelsResponse]:
    """Calls ListModels by either client."""

    def call(target: str, timeout_s: float = TIMEOUT_S, **settings: Any) -> pb.ListModelsResponse:
        return Client(request.param, target, **settings).call("list_models", timeout_s)

    return call


def test_overloaded_service_is_called_again_after_the_time_it_asks_for(call):
    failing = Failing(BUSY, BUSY)
    with serving_methods(ListModels=failing) as target:
        start_s = time.perf_counter()
        assert call(target).models[0].name == "m"
        assert time.perf_counter() - start_s >= 0.1
    assert failing.calls == 3


def test_attempts_share_one_deadline():
    """By a fake clock: what the server sees of a deadline is some 50 ms off on a busy machine."""
    now_s = 100.0
    attempts = Attempts(30.0, 4, clock=lambda: now_s)
    assert attempts.remaining_s == 30
    now_s = 112.0
    assert attempts.remaining_s == 18


@pytest.mark.parametrize("error", [InvalidRequest("query", "empty"), grpc.StatusCode.RESOURCE_EXHAUSTED])
def test_error_that_stays_is_raised_at_once(call, error):
    """RESOURCE_EXHAUSTED without RetryInfo is gRPC's refusal of a message that is too large."""
    failing = Failing(error)
    with serving_methods(ListModels=failing) as target, pytest.raises(ServiceError):
        call(target)
    assert failing.calls == 1


@pytest.mark.parametrize("attempts", [1, 2])
def test_last_attempt_raises_the_error_of_the_service(call, attempts):
    failing = Failing(BUSY, BUSY, BUSY)
    with (
        serving_methods(ListModels=failing) as target,
        pytest.raises(ServiceError, match="the queue is full") as caught,
    ):
        call(target, attempts=attempts)
    assert failing.calls == attempts
    assert caught.value.retry_after_s == pytest.approx(0.05)


def test_wait_that_the_deadline_does_not_allow_is_not_begun(call):
    failing = Failing(Overloaded("full for a minute", 60.0))
    with serving_methods(ListModels=failing) as target, pytest.raises(ServiceError, match="full for a minute"):
        call(target, timeout_s=5.0)
    assert failing.calls == 1


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rerank.client.retries._FIRST_WAIT_S", 0.02)
    monkeypatch.setattr("rerank.client.retries._LONGEST_WAIT_S", 0.1)


@pytest.mark.usefixtures("short_waits")
def test_service_that_is_still_loading_is_waited_for(call, caplog):
    """Its port is opened after more time than four attempts take."""
    server, port = server_of(ListModels=Failing(BUSY, BUSY, BUSY)), free_port()

    def start() -> None:
        server.add_insecure_port(f"127.0.0.1:{port}")
        server.start()

    loading = threading.Timer(0.6, start)
    loading.start()
    try:
        assert call(f"127.0.0.1:{port}").models[0].name == "m"
        assert caplog.text.count("nothing answers yet, waiting for up to") == 1
    finally:
        loading.join()
        server.stop(None).wait()


@pytest.mark.usefixtures("short_waits")
def test_service_that_does_not_come_is_named_at_the_deadline(call):
    target = f"127.0.0.1:{free_port()}"
    start_s = time.perf_counter()
    with pytest.raises(ServiceError, match=rf"no answer from {target}: is `rerank serve` running there\?"):
        call(target, timeout_s=0.4)
    assert 0.25 < time.perf_counter() - start_s < 5


def test_port_that_speaks_no_grpc_is_named_at_once():
    with (
        http_service() as served,
        RerankClient(served.http.address) as client,
        pytest.raises(ServiceError, match="does not speak gRPC; is it the HTTP port"),
    ):
        client.list_models(TIMEOUT_S)


def test_service_without_tls_is_named_at_once():
    with (
        serving_methods(ListModels=Failing()) as target,
        RerankClient(target, Credentials(tls_ca="system")) as client,
        pytest.raises(ServiceError, match="TLS cannot be agreed on; does the service have TLS"),
    ):
        client.list_models(TIMEOUT_S)


def test_service_with_tls_is_named_to_a_client_without(tmp_path, caplog, monkeypatch):
    """The calls go on until their deadline, as a proxy in front of a service that starts closes connections, too."""
    monkeypatch.setattr("rerank.client.retries._FIRST_WAIT_S", 0.01)
    with (
        running_service(tls=Authority(tmp_path).issue("server").tls) as served,
        RerankClient(served.address) as client,
        pytest.raises(ServiceError, match="ends the connection; if the service has TLS, give tls_ca"),
    ):
        client.list_models(1.0)
    assert "if the service has TLS, give tls_ca" in caplog.text


def test_deadline_without_an_answer_is_a_sentence():
    def answer_after_the_deadline(request: pb.ListModelsRequest, context: grpc.ServicerContext) -> None:
        ended = threading.Event()
        context.add_callback(ended.set)
        ended.wait(TIMEOUT_S)

    with (
        serving_methods(ListModels=answer_after_the_deadline) as target,
        RerankClient(target) as client,
        pytest.raises(ServiceError, match=f"no answer from {target} before the deadline; allow more time") as caught,
    ):
        client.list_models(0.2)
    assert (caught.value.code, caught.value.reason) == (grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED")


def test_service_that_is_not_there_has_a_reason():
    with RerankClient("127.0.0.1:1", attempts=1) as client, pytest.raises(ServiceError) as caught:
        client.list_models(TIMEOUT_S)
    assert (caught.value.code, caught.value.reason) == (grpc.StatusCode.UNAVAILABLE, "NO_ANSWER")


def test_waits_without_retry_info_double_and_are_spread_by_chance():
    for chance, expected in ((0.0, [0.25, 0.5, 1.0, None]), (1.0, [0.3125, 0.625, 1.25, None])):
        attempts = Attempts(60.0, 4, clock=lambda: 0.0, random_number=lambda chance=chance: chance)
        assert [attempts.wait_s(EndOfCall(grpc.StatusCode.UNAVAILABLE)) for _ in range(4)] == expected
