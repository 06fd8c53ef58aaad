"""RerankClient.rerank_many: answers in the order of the requests, failures as values, a bounded read-ahead."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from rerank.access.callers import CallerLimits
from rerank.access.credentials import Credentials
from rerank.access.key_file import add_key
from rerank.client.client import RerankClient
from rerank.client.error_details import ServiceError
from rerank.errors import InvalidRequest
from rerank.models.encoder import Encoder
from rerank.rankers.identity import IdentityRanker
from rerank.v1 import rerank_pb2 as pb
from rerank.v1.rerank_pb2_grpc import RerankServiceServicer
from tests.fakes import NumberRanker
from tests.serving import reranker_of, serving, serving_servicer


@pytest.fixture(scope="module")
def address(encoder: Encoder) -> Iterator[str]:
    rankers = {"number": NumberRanker(), "identity": IdentityRanker()}
    with serving(reranker_of(encoder, rankers)) as served:
        yield served.address


@pytest.fixture
def client(address: str) -> Iterator[RerankClient]:
    with RerankClient(address) as client:
        yield client


def ids(answer: pb.RerankResponse | ServiceError) -> list[str]:
    assert isinstance(answer, pb.RerankResponse), answer
    return [result.doc_id for result in answer.results]


@pytest.mark.parametrize(
    ("request_", "options", "error"),
    [
        ("q", {}, TypeError),
        (("q", ["1"], 3), {}, TypeError),
        (("q", [7]), {}, InvalidRequest),
        (("q", "text"), {}, InvalidRequest),
        (("q", ["1"]), {"depth": 3}, InvalidRequest),
    ],
)
def test_mistake_in_the_call_is_raised(
    client: RerankClient, request_: Any, options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        [*client.rerank_many([request_], **options)]


def test_batch_of_a_key_with_few_calls_is_answered_without_failures(encoder: Encoder, tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    credentials = Credentials(api_key=add_key(file, "shop", CallerLimits(max_calls=2)))
    with (
        serving(reranker_of(encoder, {"number": NumberRanker()}, keys=file)) as served,
        RerankClient(served.address, credentials) as client,
    ):
        assert [ids(answer) for answer in client.rerank_many([("q", ["1", "2"])] * 50)] == [["1", "0"]] * 50


class FlakyServicer(RerankServiceServicer):
    """Fails twice with UNAVAILABLE, as a service that restarts does."""

    def __init__(self) -> None:
        self.calls, self._lock = 0, threading.Lock()

    def Rerank(self, request: Any, context: Any) -> pb.RerankResponse:  # noqa: N802
        with self._lock:
            self.calls += 1
            fails = self.calls in (2, 3)
        if fails:
            context.abort(grpc.StatusCode.UNAVAILABLE, "restarted")
        return pb.RerankResponse()


def test_requests_that_a_restart_has_ended_are_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rerank.client.retries._FIRST_WAIT_S", 0.01)
    servicer = FlakyServicer()
    with serving_servicer(servicer) as target, RerankClient(target) as client:
        assert [ids(answer) for answer in client.rerank_many([("q", ["1"])] * 8)] == [[]] * 8
    assert servicer.calls == 10


def test_service_that_cannot_be_reached_ends_the_batch() -> None:
    with RerankClient("127.0.0.1:1", attempts=1) as client, pytest.raises(ServiceError, match="no answer from"):
        [*client.rerank_many([("q", ["1"])])]
