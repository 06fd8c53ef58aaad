"""Limits on the calls in flight: their number, the bytes of their messages, and the time that a transfer may take."""

import asyncio
import math
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2

from rerank.access import keys as keys_module
from rerank.access.keys import CallerLimits, KeyStore, add_key
from rerank.config import Limits
from rerank.errors import Overloaded
from rerank.ports.connections import end_connection_of
from rerank.service.limits import CallsInFlight
from rerank.v1 import rerank_pb2 as pb
from tests.serving import TIMEOUT_S, held_service, numbered_candidates, refusal, running_service

EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
METHOD = "/rerank.v1.RerankService/Rerank"
SMALL = pb.RerankRequest(query="q", candidates=numbered_candidates([1, 2]))


def large(kilobytes: int, **fields: Any) -> pb.RerankRequest:
    text = "x" * 1000
    candidates = [pb.Candidate(doc_id=str(number), text=text) for number in range(kilobytes)]
    return pb.RerankRequest(query="q", candidates=candidates, **fields)


@contextmanager
def half_sent(address: str, calls: int) -> Iterator[list[grpc.Future]]:
    """A connection with calls that announce a request and do not send it."""
    release = threading.Event()

    def nothing() -> Iterator[bytes]:
        release.wait(TIMEOUT_S)
        yield from ()

    with grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        try:
            yield [channel.stream_unary(METHOD).future(nothing()) for _ in range(calls)]
        finally:
            release.set()


def test_bytes_over_the_limit_are_refused_and_small_messages_are_not():
    with held_service(free_batches=0, limits={"max_bytes_in_flight": 150_000}) as held:
        call = held.start_call(candidates=large(100).candidates)
        refused = refusal(lambda: held.stub.Rerank(large(80), timeout=TIMEOUT_S))
        assert (refused.code, refused.reason) == (EXHAUSTED, "OVERLOADED")
        assert "exceed the limit of 150000" in refused.message
        assert refused.detail(error_details_pb2.RetryInfo).retry_delay.seconds == 1
        small = held.stub.Rerank.future(SMALL, timeout=TIMEOUT_S)
        held.ranker.release.set()
        assert len(small.result(TIMEOUT_S).results) == 2
        assert len(call.result(TIMEOUT_S).results) == 100
        held.wait_until_idle()
        assert len(held.stub.Rerank(large(80), timeout=TIMEOUT_S).results) == 80


def test_message_alone_may_exceed_the_bytes_in_flight():
    with running_service(limits={"max_bytes_in_flight": 1000}) as served:
        for _ in range(3):
            assert len(served.stub.Rerank(large(100, return_passages=True), timeout=TIMEOUT_S).results) == 100
            served.wait_until_idle()


@pytest.mark.parametrize("method", [METHOD, "/grpc.health.v1.Health/Watch"])
def test_refused_messages_are_not_kept(method):
    """Frames of exceptions, and iterators over messages, kept them until the garbage collection."""
    with running_service() as served:
        garbage = b"\xff" + bytes(8_000_000)
        before_mb = resident_mb()
        for _ in range(60):
            assert refusal(lambda: served.channel.unary_unary(method)(garbage)).code is grpc.StatusCode.INVALID_ARGUMENT
            served.wait_until_idle()
        assert resident_mb() - before_mb < 240  # of 480


def resident_mb() -> float:
    with open("/proc/self/statm", encoding="utf-8") as file:
        return int(file.read().split()[1]) * 4096 / 1e6


@pytest.mark.parametrize("peer", ["ipv4:127.0.0.1:1", "ipv6:%5B::1%5D:1"])
def test_connection_of_another_client_is_not_ended(peer):
    with running_service() as served:
        served.stub.Rerank(SMALL, timeout=TIMEOUT_S)
        served.loop.call_soon_threadsafe(end_connection_of, int(served.address.rpartition(":")[2]), peer)
        served.wait(asyncio.sleep(0.1))
        assert len(served.stub.Rerank(SMALL, timeout=TIMEOUT_S).results) == 2


def test_calls_without_messages_on_one_connection_all_end_in_time():
    with running_service(limits={"max_transfer_s": 0.5}) as served, half_sent(served.address, 50) as calls:
        start_s = time.perf_counter()
        for call in calls:
            assert "did not arrive in time" in refusal(lambda call=call: call.result(TIMEOUT_S)).message
        assert time.perf_counter() - start_s < 6  # two at a time would take 12.5


def test_call_without_a_message_gives_way_when_there_is_no_room():
    """The oldest one, so that a connection with as many calls as there may be locks out nobody."""
    with running_service(limits={"max_calls": 4}) as served, half_sent(served.address, 4) as silent:
        served.wait_for_calls(4)
        for _ in range(3):
            assert len(served.stub.Rerank(SMALL, timeout=TIMEOUT_S).results) == 2
        assert sum(call.done() for call in silent) <= 3


class FakeCall:
    """A call of a connection whose message arrives when it is set."""

    def __init__(self, connection: int) -> None:
        self.peer, self.request_id, self.deadline_s = f"ipv4:127.0.0.1:{connection}", "r", math.inf
        self.authorization: str | None = None
        self.message = asyncio.Event()

    async def read(self, place: AbstractAsyncContextManager[None]) -> bytes:
        async with place:
            await self.message.wait()
        return b""

    def hang_up(self) -> None:
        pass


async def received(calls: CallsInFlight, port: FakeCall) -> bytes | bytearray:
    with calls.enter(port, "Rerank") as call:
        return await call.receive()


async def test_key_that_is_restricted_keeps_the_count_of_its_calls_in_flight(tmp_path, monkeypatch):
    monkeypatch.setattr(keys_module, "_CHECK_S", 0.0)
    path, call = tmp_path / "keys.yaml", FakeCall(1)
    call.authorization = f"Bearer {add_key(path, 'first', CallerLimits())}"
    calls = CallsInFlight(Limits(), KeyStore(path))
    with calls.enter(call, "Rerank"):
        path.write_text(path.read_text() + "  max_calls: 1\n")
        with pytest.raises(Overloaded, match="key first has 1 calls in flight"), calls.enter(call, "Rerank"):
            pass


async def test_connection_that_sent_its_messages_in_time_goes_first():
    """A hundred connections that send nothing wait for a place among those that messages are received in."""
    calls, honest = CallsInFlight(Limits()), FakeCall(1)

    def receive(call: FakeCall) -> asyncio.Task[bytes | bytearray]:
        return asyncio.create_task(received(calls, call))

    honest.message.set()
    assert await receive(honest) == b""
    silent = [receive(FakeCall(connection)) for connection in range(2, 102)]
    await asyncio.sleep(0)
    again = FakeCall(1)
    again.message.set()
    assert await asyncio.wait_for(receive(again), 5) == b""
    assert sum(task.done() for task in silent) <= 32
    for task in silent:
        task.cancel()


async def test_streams_share_the_places_of_messages_with_calls():
    """Each place may take the memory of the largest message."""
    calls, stream = CallsInFlight(Limits()), FakeCall(100)
    stream.message.set()
    silent = [asyncio.create_task(received(calls, FakeCall(connection))) for connection in range(16)]
    await asyncio.sleep(0)
    waiting = asyncio.create_task(received(calls.for_streams(1), stream))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    assert await asyncio.wait_for(waiting, 5) == b""
    for task in silent:
        task.cancel()


async def test_call_that_arrives_when_others_have_just_run_out_of_time_is_not_a_bug():
    seconds, late = 0.1, list[asyncio.Task[Any]]()
    calls = CallsInFlight(Limits(max_transfer_s=seconds))

    def receive(connection: int) -> asyncio.Task[Any]:
        return asyncio.create_task(received(calls, FakeCall(connection)))

    waiting = [receive(number) for number in range(16)]
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_later(seconds / 2, lambda: late.append(receive(16)))
    time.sleep(2 * seconds)  # noqa: ASYNC251  # it arrives in the loop's turn when the others' time has passed
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    outcomes += await asyncio.gather(*late, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [Overloaded] * 17
