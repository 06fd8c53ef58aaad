"""RerankStream: each request is answered as Rerank answers it, under its limits; the stream holds a bounded amount."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2

from rerank.access.callers import CallerLimits
from rerank.access.key_file import add_key
from rerank.models.encoder import Encoder
from rerank.v1 import rerank_pb2 as pb
from rerank.v1.rerank_pb2_grpc import RerankServiceStub
from tests.fakes import HeldRanker, NumberRanker
from tests.serving import (
    TIMEOUT_S,
    Served,
    detail,
    held_service,
    numbered_candidates,
    refusal,
    reranker_of,
    serving,
    wait_for,
)

INVALID = grpc.StatusCode.INVALID_ARGUMENT.value[0]
FULL = grpc.StatusCode.RESOURCE_EXHAUSTED


@contextmanager
def service(encoder: Encoder, **settings: Any) -> Iterator[tuple[Served, RerankServiceStub]]:
    with (
        serving(reranker_of(encoder, {"number": NumberRanker()}, **settings)) as served,
        grpc.insecure_channel(served.address, options=[("grpc.max_send_message_length", -1)]) as channel,
    ):
        yield served, RerankServiceStub(channel)


def asked(numbers: Iterable[float], timeout_ms: float = 0, **fields: Any) -> pb.RerankStreamRequest:
    request = pb.RerankRequest(**{"query": "q", "candidates": numbered_candidates([*numbers])} | fields)
    return pb.RerankStreamRequest(request=request, timeout_ms=timeout_ms)


def answers(stub: RerankServiceStub, requests: Iterable[pb.RerankStreamRequest], **call: Any) -> dict[int, Any]:
    """Number → the response or the error of each request."""
    found = {}
    for answer in stub.RerankStream(iter(requests), **{"timeout": TIMEOUT_S} | call):
        assert answer.number not in found
        found[answer.number] = getattr(answer, answer.WhichOneof("outcome"))
    return found


class Sender:
    """Requests of a stream that a test sends one after the other; the stream ends with `None`."""

    def __init__(self) -> None:
        self._requests: queue.Queue[pb.RerankStreamRequest | None] = queue.Queue()
        self.send = self._requests.put

    def __iter__(self) -> Iterator[pb.RerankStreamRequest]:
        return iter(self._requests.get, None)


def test_each_request_gets_the_response_of_rerank(encoder: Encoder) -> None:
    requests = [asked(range(n), top_n=2, return_passages=True) for n in range(1, 9)]
    with service(encoder) as (_, stub):
        found = answers(stub, requests)
        for number, request in enumerate(requests):
            expected = stub.Rerank(request.request, timeout=TIMEOUT_S)
            assert found[number].results == expected.results
            assert found[number].execution.strategy == expected.execution.strategy
    assert len(found) == len(requests)


def test_request_that_fails_has_the_status_of_rerank_and_ends_no_other(encoder: Encoder) -> None:
    wrong = [asked([]), asked([1], query=" "), asked([1], model="none"), pb.RerankStreamRequest()]
    with service(encoder) as (_, stub):
        found = answers(stub, [*wrong, asked([1, 2])])
        for number, request in enumerate(wrong):
            expected = refusal(lambda request=request: stub.Rerank(request.request, timeout=TIMEOUT_S)).status  # type: ignore[misc]
            assert found[number] == expected
    assert [result.doc_id for result in found[len(wrong)].results] == ["d1", "d0"]


@pytest.mark.parametrize("timeout_ms", [-1.0, float("nan"), float("inf")])
def test_timeout_that_is_none_is_refused(encoder: Encoder, timeout_ms: float) -> None:
    with service(encoder) as (_, stub):
        error = answers(stub, [asked([1], timeout_ms=timeout_ms)])[0]
    assert (error.code, error.message.partition(":")[0]) == (INVALID, "timeout_ms")


def test_answers_come_when_they_are_done(encoder: Encoder) -> None:
    with held_service(encoder) as held:
        stream = held.stub.RerankStream(iter([asked([1, 2]), asked([])]), timeout=TIMEOUT_S)
        assert next(stream).number == 1
        held.ranker.release.set()
        assert [answer.number for answer in stream] == [0]


def test_timeout_of_a_request_and_deadline_of_the_stream_hold(encoder: Encoder) -> None:
    with held_service(encoder) as held:
        error = answers(held.stub, [asked([1, 2], timeout_ms=300)])[0]
        assert error.code == grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
        try:  # the service ends the request, or gRPC the stream: both wait for the same deadline
            late = answers(held.stub, [asked([1, 2])], timeout=0.3)[0].code
        except grpc.RpcError as stream_error:
            late = stream_error.code().value[0]
        assert late == grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
        held.served.wait_until_idle()


def test_cancelled_stream_cancels_its_requests(encoder: Encoder) -> None:
    with held_service(encoder) as held:
        stream = held.stub.RerankStream(iter([asked([1, 2])] * 3), timeout=TIMEOUT_S)
        assert held.ranker.entered.wait(TIMEOUT_S)
        held.served.wait_for_calls(3)
        stream.cancel()
        held.served.wait_until_idle()
        wait_for(lambda: held.reranker.engine.queued_requests == 0)


# --- bounds ---


@pytest.mark.parametrize(("in_work", "at_first"), [(4, 100), (100, 4)])
def test_stream_is_read_no_further_while_enough_requests_are_in_work(
    encoder: Encoder, monkeypatch: pytest.MonkeyPatch, in_work: int, at_first: int
) -> None:
    monkeypatch.setattr("rerank.service.streams.IN_WORK", in_work)
    monkeypatch.setattr("rerank.service.streams._AT_FIRST", at_first)
    given, passage = 0, "x" * 60_000

    def requests() -> Iterator[pb.RerankStreamRequest]:
        nonlocal given
        for given in range(100):  # noqa: B007
            yield asked([], candidates=[pb.Candidate(doc_id="a", text=passage)])

    with held_service(encoder) as held:
        stream = held.stub.RerankStream(requests(), timeout=TIMEOUT_S)
        held.served.wait_for_calls(4)
        time.sleep(0.3)  # in which it could read more
        assert held.served.server.calls.number == 4
        assert given < 20  # what gRPC holds beside is its windows of flow control
        held.ranker.release.set()
        assert sum(answer.HasField("response") for answer in stream) == 100


def test_client_that_reads_no_answer_is_read_no_further_and_loses_its_connection(
    encoder: Encoder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr("rerank.service.streams.IN_WORK", 4)
    monkeypatch.setattr("rerank.service.streams._AT_FIRST", 100)
    large = asked([], candidates=[pb.Candidate(doc_id="a", text="x" * 100_000)], return_passages=True)
    with service(encoder, limits={"max_transfer_s": 1.0}) as (served, stub):
        calls, most, ended = served.server.calls, 0, threading.Event()
        stream = stub.RerankStream(iter([large] * 1000), timeout=TIMEOUT_S)  # whose answers nobody asks for
        stream.add_callback(ended.set)
        while not ended.wait(0.01):
            most = max(most, calls.number)
        assert stream.code() is grpc.StatusCode.UNAVAILABLE
        assert 0 < most <= 4
        served.wait_until_idle()
    (line,) = caplog.messages
    assert "did not read an answer within 1 s: its connection ends" in line


def test_stream_waits_for_its_own_requests_where_another_one_would_fill_the_queue(encoder: Encoder) -> None:
    with service(encoder, engine={"max_queue_tokens": 100}) as (_, stub):
        found = answers(stub, [asked(range(50))] * 20)
    assert all(isinstance(answer, pb.RerankResponse) for answer in found.values())


def test_request_that_finds_no_room_beside_those_of_others_is_told_when_to_come_again(encoder: Encoder) -> None:
    with held_service(encoder, engine={"max_queue_tokens": 100}) as held:
        other = held.start_call(candidates=numbered_candidates(range(50)))
        error = answers(held.stub, [asked(range(50))], timeout=10)[0]
        assert error.code == FULL.value[0]
        assert detail(error, error_details_pb2.RetryInfo).retry_delay.ToMilliseconds() > 0
        assert not other.done()


def test_bytes_of_a_stream_stay_a_part_of_those_in_flight(encoder: Encoder) -> None:
    large = asked([], candidates=[pb.Candidate(doc_id="a", text="x" * 150_000)])
    with service(encoder, limits={"max_bytes_in_flight": 400_000}) as (_, stub):
        found = answers(stub, [large] * 30)
    assert all(isinstance(answer, pb.RerankResponse) for answer in found.values())


def test_millions_of_fields_are_refused_before_they_are_parsed(encoder: Encoder) -> None:
    legal = asked([1, 2]).SerializeToString()
    with service(encoder) as (served, _), grpc.insecure_channel(served.address) as channel:
        rpc = channel.stream_stream("/rerank.v1.RerankService/RerankStream")
        messages = [b"\x78\x00" * 1_000_000, b"\xff\xff", legal]
        found = [pb.RerankStreamResponse.FromString(each) for each in rpc(iter(messages), timeout=TIMEOUT_S)]
    by_number = {answer.number: answer for answer in found}
    assert "more than 8064 fields" in by_number[0].error.message
    assert by_number[1].error.code == INVALID
    assert len(by_number[2].response.results) == 2


def test_silent_stream_ends_unless_a_request_is_in_work(encoder: Encoder) -> None:
    with held_service(encoder, limits={"max_transfer_s": 0.5}) as held:
        silent = refusal(lambda: answers(held.stub, Sender()))
        assert (silent.code, silent.detail(error_details_pb2.ErrorInfo).metadata["exceeded"]) == (
            FULL,
            "max_transfer_s",
        )
        sender = Sender()
        stream = held.stub.RerankStream(iter(sender), timeout=TIMEOUT_S)
        sender.send(asked([1, 2]))
        time.sleep(1.2)  # more than a transfer may take
        held.ranker.release.set()
        assert next(stream).HasField("response")
        assert refusal(lambda: next(stream)).code is FULL


def test_number_of_open_streams_is_limited(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rerank.service.streams._STREAMS", 1)
    with service(encoder) as (_, stub):
        sender = Sender()
        stream = stub.RerankStream(iter(sender), timeout=TIMEOUT_S)
        sender.send(asked([1]))
        next(stream)
        refused = refusal(lambda: answers(stub, [asked([1])]))
        assert (refused.code, refused.detail(error_details_pb2.RetryInfo).retry_delay.seconds) == (FULL, 1)
        sender.send(asked([1]))
        assert next(stream).HasField("response"), "it was just opened, and gives way to none"
        sender.send(None)
        assert [*stream] == []
        wait_for(lambda: is_answered(stub))


def test_stream_that_is_silent_for_longest_gives_way_to_a_new_one(
    encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rerank.service.streams._STREAMS", 3)
    monkeypatch.setattr("rerank.service.streams._SILENT_S", 0.2)
    with held_service(encoder) as held:
        busy_sender = Sender()
        busy = held.stub.RerankStream(iter(busy_sender), timeout=TIMEOUT_S)
        busy_sender.send(asked([1, 2]))  # the oldest stream, which has a request in work
        assert held.ranker.entered.wait(TIMEOUT_S)
        silent = [held.stub.RerankStream(iter(Sender()), timeout=TIMEOUT_S) for _ in range(2)]
        time.sleep(0.5)
        start_s = time.monotonic()
        held.ranker.release.set()
        assert is_answered(held.stub)
        assert time.monotonic() - start_s < 5
        wait_for(lambda: any(each.done() for each in silent))
        (ended,) = [each for each in silent if each.done()]
        assert (ended.code(), "another stream takes its place" in ended.details()) == (FULL, True)
        assert next(busy).HasField("response")


def is_answered(stub: RerankServiceStub) -> bool:
    try:
        return len(answers(stub, [asked([1])])) == 1
    except grpc.RpcError:
        return False


# --- keys, log, drain ---


def test_stream_needs_a_key_and_has_as_many_requests_in_work_as_it_allows(encoder: Encoder, tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    key = add_key(keys, "few", CallerLimits(max_calls=1))
    with held_service(encoder, keys=keys) as held:
        assert refusal(lambda: answers(held.stub, [asked([1])])).code is grpc.StatusCode.UNAUTHENTICATED
        bearer = [("authorization", f"Bearer {key}")]
        stream = held.stub.RerankStream(iter([asked([1, 2])] * 5), timeout=TIMEOUT_S, metadata=bearer)
        assert held.ranker.entered.wait(TIMEOUT_S)
        assert held.served.server.calls.number == 1
        held.ranker.release.set()
        assert sum(answer.HasField("response") for answer in stream) == 5


def test_streams_of_a_key_wait_for_the_tokens_of_its_other_requests(encoder: Encoder, tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    key = add_key(keys, "few", CallerLimits(max_queue_tokens=100))
    with held_service(encoder, keys=keys) as held:
        bearer = {"timeout": TIMEOUT_S, "metadata": [("authorization", f"Bearer {key}")]}
        call = held.stub.Rerank.future(asked(range(50)).request, **bearer)
        assert held.ranker.entered.wait(TIMEOUT_S)
        streams = [held.stub.RerankStream(iter([asked(range(50))] * 5), **bearer) for _ in range(2)]
        wait_for(lambda: held.served.server.calls.number == 9)  # four of each stream, as before the first answer
        held.ranker.release.set()
        assert call.result().results
        assert [sum(answer.HasField("response") for answer in stream) for stream in streams] == [5, 5]


def test_log_has_a_line_per_request_with_its_number(encoder: Encoder, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "rerank.calls")
    with service(encoder) as (served, stub):
        answers(stub, [asked([1, 2]), asked([])], metadata=[("x-request-id", "nightly")])
        served.wait_until_idle()
    lines = sorted(line.split(" ms ")[1] for line in caplog.text.splitlines() if "RerankStream" in line)
    assert lines == ["id=nightly/0 model=number candidates=2 windows=1", "id=nightly/1 candidates=0 windows=0"]


def test_drain_finishes_requests_in_work_and_refuses_further_ones(encoder: Encoder) -> None:
    ranker = HeldRanker()
    with (
        serving(reranker_of(encoder, {"number": ranker})) as served,
        grpc.insecure_channel(served.address) as channel,
    ):
        sender = Sender()
        stub = RerankServiceStub(channel)
        stream = stub.RerankStream(iter(sender), timeout=TIMEOUT_S)
        sender.send(asked([1, 2]))
        assert ranker.entered.wait(TIMEOUT_S)
        drained = served.start(served.server.drain(TIMEOUT_S))
        wait_for(lambda: served.server.calls.is_shutting_down)
        assert refusal(lambda: answers(stub, [asked([1])])).code is grpc.StatusCode.UNAVAILABLE
        sender.send(asked([1]))
        assert next(stream).error.code == grpc.StatusCode.UNAVAILABLE.value[0]
        ranker.release.set()
        assert next(stream).HasField("response")
        drained.result(TIMEOUT_S)
