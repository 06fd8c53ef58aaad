"""Failed calls that a client sends again: which, how often, and after how long."""

import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
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
from rerank.rankers.identity import IdentityRanker
from rerank.v1 import rerank_pb2 as pb
from rerank.v1.rerank_pb2_grpc import RerankServiceServicer, add_RerankServiceServicer_to_server
from tests.certificates import Authority
from tests.rerank.client.either_client import Client
from tests.serving import TIMEOUT_S, free_port, running_service, serving_servicer

BUSY = Overloaded("the queue is full; retry in 0.05 s", 0.05)


class FailingServicer(RerankServiceServicer):
    """Fails the first calls with these errors, and answers the next one. `deadlines_s` are the calls'."""

    def __init__(self, *errors: RerankError | grpc.StatusCode) -> None:
        self._errors = list(errors)
        self.deadlines_s: list[float] = []

    def ListModels(self, request: pb.ListModelsRequest, context: grpc.ServicerContext) -> pb.ListModelsResponse:  # noqa: N802
        self.deadlines_s.append(context.time_remaining())
        if not self._errors:
            return pb.ListModelsResponse(models=[pb.Model(name="m")])
        error = self._errors.pop(0)
        if isinstance(error, RerankError):
            context.abort_with_status(rpc_status.to_status(status_of(error)))
        context.abort(error, "from gRPC itself")
        raise AssertionError


@pytest.fixture(params=[RerankClient, AsyncRerankClient])
def call(request: pytest.FixtureRequest) -> Callable[..., pb.ListModelsResponse]:
    """Calls ListModels by either client."""

    def call(target: str, timeout_s: float = TIMEOUT_S, **settings: Any) -> pb.ListModelsResponse:
        return Client(request.param, target, **settings).call("list_models", timeout_s)

    return call


def test_overloaded_service_is_called_again_after_the_time_it_asks_for(call):
    servicer = FailingServicer(BUSY, BUSY)
    with serving_servicer(servicer) as target:
        start_s = time.perf_counter()
        assert call(target).models[0].name == "m"
        assert time.perf_counter() - start_s >= 0.1
    assert len(servicer.deadlines_s) == 3


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
    servicer = FailingServicer(error)
    with serving_servicer(servicer) as target, pytest.raises(ServiceError):
        call(target)
    assert len(servicer.deadlines_s) == 1


@pytest.mark.parametrize("attempts", [1, 2])
def test_last_attempt_raises_the_error_of_the_service(call, attempts):
    servicer = FailingServicer(BUSY, BUSY, BUSY)
    with serving_servicer(servicer) as target, pytest.raises(ServiceError, match="the queue is full") as caught:
        call(target, attempts=attempts)
    assert len(servicer.deadlines_s) == attempts
    assert caught.value.retry_after_s == pytest.approx(0.05)


def test_wait_that_the_deadline_does_not_allow_is_not_begun(call):
    servicer = FailingServicer(Overloaded("full for a minute", 60.0))
    with serving_servicer(servicer) as target, pytest.raises(ServiceError, match="full for a minute"):
        call(target, timeout_s=5.0)
    assert len(servicer.deadlines_s) == 1


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rerank.client.retries._FIRST_WAIT_S", 0.02)
    monkeypatch.setattr("rerank.client.retries._LONGEST_WAIT_S", 0.1)


@pytest.mark.usefixtures("short_waits")
def test_service_that_is_still_loading_is_waited_for(call, caplog):
    """Its port is opened after more time than four attempts take."""
    server = grpc.server(ThreadPoolExecutor(2))
    add_RerankServiceServicer_to_server(FailingServicer(BUSY, BUSY, BUSY), server)
    port = free_port()

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
        call(target, timeout_s=0.8)
    assert 0.5 < time.perf_counter() - start_s < 5


def test_port_that_speaks_no_grpc_is_named_at_once():
    with socket.create_server(("127.0.0.1", 0)) as port:
        port.settimeout(TIMEOUT_S)

        def answer() -> None:
            connection, _ = port.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with (
            RerankClient(f"127.0.0.1:{port.getsockname()[1]}") as client,
            pytest.raises(ServiceError, match="does not speak gRPC; is it the HTTP port"),
        ):
            client.list_models(TIMEOUT_S)
        thread.join()


def test_service_without_tls_is_named_at_once():
    with (
        serving_servicer(FailingServicer()) as target,
        RerankClient(target, Credentials(tls_ca="system")) as client,
        pytest.raises(ServiceError, match="TLS cannot be agreed on; does the service have TLS"),
    ):
        client.list_models(TIMEOUT_S)


def test_service_with_tls_is_named_to_a_client_without(tmp_path, caplog, monkeypatch):
    """The calls go on until their deadline, as a proxy in front of a service that starts closes connections, too."""
    monkeypatch.setattr("rerank.client.retries._FIRST_WAIT_S", 0.01)
    files = Authority(tmp_path).issue("server")
    tls = {"certificate": files.certificate, "key": files.key}
    with (
        running_service({"identity": IdentityRanker()}, tls=tls) as served,
        RerankClient(served.address) as client,
        pytest.raises(ServiceError, match="ends the connection; if the service has TLS, give tls_ca"),
    ):
        client.list_models(1.0)
    assert "if the service has TLS, give tls_ca" in caplog.text


class SilentServicer(RerankServiceServicer):
    """Answers long after each deadline."""

    def ListModels(self, request: pb.ListModelsRequest, context: Any) -> pb.ListModelsResponse:  # noqa: N802
        ended = threading.Event()
        context.add_callback(ended.set)
        ended.wait(TIMEOUT_S)
        return pb.ListModelsResponse()


def test_deadline_without_an_answer_is_a_sentence():
    with (
        serving_servicer(SilentServicer()) as target,
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
    class Unavailable(grpc.RpcError):
        def code(self) -> grpc.StatusCode:
            return grpc.StatusCode.UNAVAILABLE

        def trailing_metadata(self) -> tuple[()]:
            return ()

        def details(self) -> str:
            return ""

    for chance, expected in ((0.0, [0.25, 0.5, 1.0, None]), (1.0, [0.3125, 0.625, 1.25, None])):
        attempts = Attempts(60.0, 4, clock=lambda: 0.0, random_number=lambda chance=chance: chance)
        assert [attempts.wait_s(Unavailable()) for _ in range(4)] == expected
