"""RerankClient.rerank_many: answers in the order of the requests, failures as values, retries, a bounded read-ahead."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from rerank.client.client import RerankClient
from rerank.client.error_details import ServiceError
from rerank.errors import ConfigError, DeadlineExceeded, InvalidRequest
from rerank.models.encoder import Encoder
from rerank.protobuf.status import status_of
from rerank.rankers.identity import IdentityRanker
from rerank.v1 import rerank_pb2 as pb
from rerank.v1.rerank_pb2_grpc import RerankServiceServicer
from tests.fakes import NumberRanker
from tests.serving import held_service, reranker_of, serving, serving_servicer, wait_for


@pytest.fixture(scope="module")
def address(encoder: Encoder) -> Iterator[str]:
    rankers = {"number": NumberRanker(), "identity": IdentityRanker()}
    with serving(reranker_of(encoder, rankers, limits={"max_transfer_s": 1.0})) as served:
        yield served.address


@pytest.fixture
def client(address: str) -> Iterator[RerankClient]:
    with RerankClient(address) as client:
        yield client


def ids(answer: pb.RerankResponse | ServiceError) -> list[str]:
    assert isinstance(answer, pb.RerankResponse), answer
    return [result.doc_id for result in answer.results]


def test_answers_are_in_the_order_of_the_requests_and_options_hold_for_all(client: RerankClient) -> None:
    requests = [("q", [f"relevance {i}" for i in range(n)]) for n in (50, 1, 3)] * 20
    answers = [ids(answer) for answer in client.rerank_many(requests, top_n=2, model="number")]
    assert answers == [["49", "48"], ["0"], ["2", "1"]] * 20


def test_failed_request_is_its_error_and_no_other_fails(client: RerankClient) -> None:
    """Also two requests that are the same, and one with no candidates."""
    first, empty, again, blank = client.rerank_many([("q", ["1"]), ("q", []), ("q", ["1"]), (" ", ["1"])])
    assert ids(first) == ids(again) == ["0"]
    assert isinstance(empty, ServiceError)
    assert isinstance(blank, ServiceError)
    assert str(empty) == "candidates: the list is empty; send at least one candidate"
    assert (empty.code, empty.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST")


def test_no_requests_have_no_answers(client: RerankClient) -> None:
    assert [*client.rerank_many([], show_progress_bar=True)] == []


def test_requests_are_read_as_they_are_needed(client: RerankClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rerank.client.many_requests._AHEAD", 10)
    read = 0

    def requests() -> Iterator[tuple[str, list[str]]]:
        nonlocal read
        while True:
            read += 1
            yield "q", ["1"]

    answers = client.rerank_many(requests())
    assert read == 0
    for number in range(1, 50):
        assert ids(next(answers)) == ["0"]
        assert read <= number + 10
    answers.close()  # type: ignore[attr-defined]


def test_large_requests_are_read_one_at_a_time(client: RerankClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rerank.client.many_requests._BYTES_AHEAD", 1000)
    read = iter([("q", ["x" * 2000])] * 5)
    answers = client.rerank_many(read)
    next(answers)
    assert len([*read]) == 4


@pytest.mark.parametrize(
    ("request_", "options", "error"),
    [
        ("q", {}, TypeError),
        (("q", ["1"], 3), {}, TypeError),
        (("q", [7]), {}, TypeError),
        (("q", "text"), {}, TypeError),
        (("q", ["1"]), {"depth": 3}, InvalidRequest),
    ],
)
def test_mistake_in_the_call_is_raised(
    client: RerankClient, request_: Any, options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        [*client.rerank_many([request_], **options)]


def test_stream_that_ended_because_the_caller_was_slow_is_opened_again(client: RerankClient) -> None:
    answers = client.rerank_many(slowly([("q", ["1"])] * 2))
    # The second request is read long after the first one was answered, when the service has ended the stream.
    assert [ids(answer) for answer in answers] == [["0"]] * 2


def slowly(requests: list[tuple[str, list[str]]]) -> Iterator[tuple[str, list[str]]]:
    for request in requests:
        yield request
        time.sleep(1.5)  # longer than a transfer may take


def test_closed_iterator_cancels_what_is_under_way(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rerank.client.many_requests._AHEAD", 2)
    with held_service(encoder, free_batches=1) as held, RerankClient(held.served.address) as client:
        answers = client.rerank_many([("q", ["1", "2"])] * 10)
        next(answers)
        answers.close()  # type: ignore[attr-defined]
        held.served.wait_until_idle()
        wait_for(lambda: held.reranker.engine.queued_requests == 0)


class FlakyServicer(RerankServiceServicer):
    """Answers requests by `answer`, stream by stream."""

    def __init__(self, answer: Any) -> None:
        self.answer, self.streams = answer, 0

    def RerankStream(self, requests: Any, context: Any) -> Iterator[pb.RerankStreamResponse]:  # noqa: N802
        self.streams += 1
        yield from self.answer(self.streams, requests, context)


def answered(number: int) -> pb.RerankStreamResponse:
    return pb.RerankStreamResponse(number=number, response=pb.RerankResponse())


def test_requests_of_a_broken_stream_are_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rerank.client.retries._FIRST_WAIT_S", 0.01)

    def answer(stream: int, requests: Any, context: Any) -> Iterator[pb.RerankStreamResponse]:
        for number, _ in enumerate(requests):
            if stream == 1 and number == 2:
                context.abort(grpc.StatusCode.UNAVAILABLE, "restarted")
            yield answered(number)

    servicer = FlakyServicer(answer)
    with serving_servicer(servicer) as target, RerankClient(target) as client:
        assert len([ids(each) for each in client.rerank_many([("q", ["1"])] * 8)]) == 8
    assert servicer.streams == 2


def test_request_that_finds_no_room_is_sent_again_on_the_same_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rerank.client.retries._FIRST_WAIT_S", 0.01)
    from rerank.errors import Overloaded

    def answer(stream: int, requests: Any, context: Any) -> Iterator[pb.RerankStreamResponse]:
        for number, _ in enumerate(requests):
            error = status_of(Overloaded("full", 0.01)) if number in (0, 1) else None
            yield pb.RerankStreamResponse(number=number, error=error) if error else answered(number)

    servicer = FlakyServicer(answer)
    with serving_servicer(servicer) as target, RerankClient(target) as client:
        assert [ids(each) for each in client.rerank_many([("q", ["1"])] * 3)] == [[], [], []]
    assert servicer.streams == 1


def test_stream_that_fails_for_good_is_an_error_of_all() -> None:
    with RerankClient("127.0.0.1:1", attempts=1) as client, pytest.raises(ServiceError, match="no answer from"):
        [*client.rerank_many([("q", ["1"])])]


def test_service_without_streams_is_named() -> None:
    with (
        serving_servicer(RerankServiceServicer()) as target,
        RerankClient(target) as client,
        pytest.raises(ConfigError, match=r"answers no streams, as on Ray Serve; send its requests singly"),
    ):
        [*client.rerank_many([("q", ["1"])])]


def test_silent_service_is_given_up() -> None:
    ended = threading.Event()

    def answer(stream: int, requests: Any, context: Any) -> Iterator[pb.RerankStreamResponse]:
        context.add_callback(ended.set)
        ended.wait(60)
        yield from ()

    with serving_servicer(FlakyServicer(answer)) as target, RerankClient(target) as client:
        with pytest.raises(DeadlineExceeded, match="no answer from"):
            [*client.rerank_many([("q", ["1"])], timeout_s=0.1)]
        assert ended.wait(60)
