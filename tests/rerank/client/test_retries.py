"""Failed calls that a client sends again: which, how often, and after how long."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from grpc_status import rpc_status

from rerank.client.client import AsyncRerankClient, RerankClient
from rerank.client.error_details import ServiceError
from rerank.client.retries import Attempts
from rerank.errors import InvalidRequest, Overloaded, RerankError, ShuttingDown
from rerank.service.status import status_of
from rerank.v1 import rerank_pb2 as pb
from rerank.v1.rerank_pb2_grpc import RerankServiceServicer
from tests.rerank.client.either_client import Client
from tests.serving import TIMEOUT_S, serving_servicer

BUSY = Overloaded("the queue is full; retry in 0.05 s", 0.05)


class FailingServicer(RerankServiceServicer):
    """Fails the first calls with these errors, and answers the next one. `deadlines_s` are those of the calls."""

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


def test_overloaded_service_is_called_again_after_the_time_it_asks_for(call: Callable[..., Any]) -> None:
    servicer = FailingServicer(BUSY, BUSY)
    with serving_servicer(servicer) as target:
        start_s = time.perf_counter()
        assert call(target).models[0].name == "m"
        assert time.perf_counter() - start_s >= 0.1
    assert len(servicer.deadlines_s) == 3


def test_unavailable_service_is_called_again(call: Callable[..., Any]) -> None:
    servicer = FailingServicer(ShuttingDown("stopping"))
    with serving_servicer(servicer) as target:
        assert call(target).models[0].name == "m"
    assert len(servicer.deadlines_s) == 2


@pytest.mark.parametrize("error", [InvalidRequest("query", "empty"), grpc.StatusCode.RESOURCE_EXHAUSTED])
def test_error_that_stays_is_raised_at_once(call: Callable[..., Any], error: Any) -> None:
    """RESOURCE_EXHAUSTED without RetryInfo is gRPC's refusal of a message that is too large."""
    servicer = FailingServicer(error)
    with serving_servicer(servicer) as target, pytest.raises(ServiceError):
        call(target)
    assert len(servicer.deadlines_s) == 1


@pytest.mark.parametrize("attempts", [1, 2])
def test_last_attempt_raises_the_error_of_the_service(call: Callable[..., Any], attempts: int) -> None:
    servicer = FailingServicer(BUSY, BUSY, BUSY)
    with serving_servicer(servicer) as target, pytest.raises(ServiceError, match="the queue is full") as caught:
        call(target, attempts=attempts)
    assert len(servicer.deadlines_s) == attempts
    assert caught.value.retry_after_s == pytest.approx(0.05)


def test_wait_that_the_deadline_does_not_allow_is_not_begun(call: Callable[..., Any]) -> None:
    servicer = FailingServicer(Overloaded("full for a minute", 60.0))
    with serving_servicer(servicer) as target, pytest.raises(ServiceError, match="full for a minute"):
        call(target, timeout_s=5.0)
    assert len(servicer.deadlines_s) == 1


def test_attempts_share_one_deadline() -> None:
    now_s = 100.0
    attempts = Attempts(30.0, 4, clock=lambda: now_s)
    assert attempts.remaining_s == 30
    now_s = 112.0
    assert attempts.remaining_s == 18


def test_call_without_a_deadline_of_the_caller_has_one() -> None:
    servicer = FailingServicer()
    with serving_servicer(servicer) as target, RerankClient(target) as client:
        client.list_models()
    assert 100 < servicer.deadlines_s[0] <= 121


def test_waits_without_retry_info_double_and_are_spread_by_chance() -> None:
    class Unavailable(grpc.RpcError):
        def code(self) -> grpc.StatusCode:
            return grpc.StatusCode.UNAVAILABLE

        def trailing_metadata(self) -> tuple[()]:
            return ()

        def details(self) -> str:
            return ""

    for chance, expected in ((0.0, [0.25, 0.5, 1.0, None]), (1.0, [0.3125, 0.625, 1.25, None])):
        attempts = Attempts(60.0, 4, clock=lambda: 0.0, chance=lambda chance=chance: chance)  # type: ignore[misc]
        assert [attempts.wait_s(Unavailable()) for _ in range(4)] == expected
