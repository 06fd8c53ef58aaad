"""Limits on calls in flight: their number, the bytes of their messages, the time of a transfer, and who gives way."""

import asyncio
import math
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from typing import Any

import grpc
import psutil
import pytest
from google.rpc import error_details_pb2

from rerank.access.keys import CallerLimits, KeyStore, add_key
from rerank.config import Limits
from rerank.engine.accounts import Shared
from rerank.errors import DeadlineExceeded, Overloaded
from rerank.ports.connections import end_connection_of
from rerank.service.limits import SMALL_MESSAGE, CallInFlight, CallsInFlight
from rerank.v1 import rerank_pb2 as pb
from tests.serving import OWN_CONNECTION, REQUEST, RERANK, TIMEOUT_S, held_service, refusal, running_service

EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
#: Bytes of a message that is not small.
LARGE = 1 << 20


def large(kilobytes: int, **fields: Any) -> pb.RerankRequest:
    candidates = [pb.Candidate(doc_id=str(number), text="x" * 1000) for number in range(kilobytes)]
    return pb.RerankRequest(query="q", candidates=candidates, **fields)


@contextmanager
def half_sent(address: str, calls: int) -> Iterator[list[grpc.Future]]:
    """A connection with calls that announce a request and do not send it."""
    release = threading.Event()

    def nothing() -> Iterator[bytes]:
        release.wait(TIMEOUT_S)
        yield from ()

    with grpc.insecure_channel(address, options=OWN_CONNECTION) as channel:
        try:
            yield [channel.stream_unary(RERANK).future(nothing()) for _ in range(calls)]
        finally:
            release.set()


def test_bytes_over_the_limit_are_refused_and_small_messages_are_not():
    with held_service(free_batches=0, limits={"max_bytes_in_flight": 150_000}) as held:
        call = held.start_call(candidates=large(100).candidates)
        refused = refusal(lambda: held.stub.Rerank(large(80), timeout=TIMEOUT_S))
        assert (refused.code, refused.reason) == (EXHAUSTED, "OVERLOADED")
        assert "exceed the limit of 150000" in refused.message
        assert refused.detail(error_details_pb2.RetryInfo).retry_delay.seconds == 1
        small = held.stub.Rerank.future(REQUEST, timeout=TIMEOUT_S)
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


@pytest.mark.parametrize("method", [RERANK, "/grpc.health.v1.Health/Watch"])
def test_refused_messages_are_not_kept(method):
    """Frames of exceptions, and iterators over messages, kept them until the garbage collection."""
    with running_service() as served:
        garbage = b"\xff" + bytes(8_000_000)
        process = psutil.Process()
        before = process.memory_info().rss
        for _ in range(60):
            assert refusal(lambda: served.channel.unary_unary(method)(garbage)).code is grpc.StatusCode.INVALID_ARGUMENT
            served.wait_until_idle()
        assert process.memory_info().rss - before < 240e6  # of 480


@pytest.mark.parametrize("peer", ["ipv4:127.0.0.1:1", "ipv6:%5B::1%5D:1"])
def test_connection_of_another_client_is_not_ended(peer):
    with running_service() as served:
        assert served.answers()
        served.loop.call_soon_threadsafe(end_connection_of, served.port, peer)
        served.wait(asyncio.sleep(0.1))
        assert served.answers()


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
            assert served.answers()
        assert sum(call.done() for call in silent) <= 3


class FakeCall:
    """A call of a connection whose message arrives when `message` is set."""

    def __init__(self, connection: int, deadline_s: float = math.inf) -> None:
        self.peer, self.request_id, self.deadline_s = f"ipv4:127.0.0.1:{connection}", "r", deadline_s
        self.authorization: str | None = None
        self.message, self.hung_up = asyncio.Event(), False

    async def read(self, slot: AbstractAsyncContextManager[None]) -> bytes:
        async with slot:
            await self.message.wait()
        return b""

    def hang_up(self) -> None:
        self.hung_up = True


def receive(calls: CallsInFlight, port: FakeCall) -> asyncio.Task[bytes | bytearray]:
    """A task that receives the message of a call."""

    async def receive() -> bytes | bytearray:
        with calls.enter(port, "Rerank") as call:
            return await call.receive()

    return asyncio.create_task(receive())


async def test_key_that_is_restricted_keeps_the_count_of_its_calls_in_flight(tmp_path, monkeypatch):
    monkeypatch.setattr("rerank.access.keys._CHECK_S", 0.0)
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
    honest.message.set()
    assert await receive(calls, honest) == b""
    silent = [receive(calls, FakeCall(connection)) for connection in range(2, 102)]
    await asyncio.sleep(0)
    again = FakeCall(1)
    again.message.set()
    assert await asyncio.wait_for(receive(calls, again), 5) == b""
    assert sum(task.done() for task in silent) <= 32
    for task in silent:
        task.cancel()


async def test_streams_share_the_places_of_messages_with_calls():
    """Each place may take the memory of the largest message."""
    calls, stream = CallsInFlight(Limits()), FakeCall(100)
    stream.message.set()
    silent = [receive(calls, FakeCall(connection)) for connection in range(16)]
    await asyncio.sleep(0)
    waiting = receive(calls.for_streams(1), stream)
    await asyncio.sleep(0.05)
    assert not waiting.done()
    assert await asyncio.wait_for(waiting, 5) == b""
    for task in silent:
        task.cancel()


async def test_call_that_arrives_when_others_have_just_run_out_of_time_is_not_a_bug():
    seconds, late = 0.1, list[asyncio.Task[Any]]()
    calls = CallsInFlight(Limits(max_transfer_s=seconds))
    waiting = [receive(calls, FakeCall(number)) for number in range(16)]
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_later(seconds / 2, lambda: late.append(receive(calls, FakeCall(16))))
    time.sleep(2 * seconds)  # noqa: ASYNC251  # it arrives in the loop's turn when the others' time has passed
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    outcomes += await asyncio.gather(*late, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [Overloaded] * 17


async def test_answer_replaces_the_bytes_of_its_request():
    calls = CallsInFlight(Limits(max_bytes_in_flight=1000))
    first, second = (CallInFlight(FakeCall(number), calls, "Rerank").usage for number in (1, 2))
    calls.hold(first, LARGE)
    with pytest.raises(Overloaded, match=f"{LARGE} bytes in flight, 0 of them yours; {LARGE + 1} more exceed"):
        calls.hold(second, LARGE + 1)
    calls.hold(first, LARGE)
    calls.hold(second, SMALL_MESSAGE)
    assert calls.accounts.held_by(first.name, Shared.BYTES) == LARGE
    calls.hold(first, SMALL_MESSAGE)
    calls.hold(second, LARGE)


async def test_message_is_not_read_after_its_deadline():
    calls, late = CallsInFlight(Limits()), FakeCall(1, deadline_s=0.0)
    with calls.enter(late, "Rerank") as call, pytest.raises(DeadlineExceeded, match="while the request arrived"):
        await asyncio.wait_for(call.receive(), 1)


async def test_unread_answer_gives_way_with_its_connection():
    calls, slow = CallsInFlight(Limits(max_calls=1)), FakeCall(1)
    with calls.enter(slow, "Rerank") as call:
        call.reply(b"answer")
    with calls.enter(FakeCall(2), "Rerank"):
        assert slow.hung_up
    assert call.unread.cancelled()
    calls.leave(slow)
    assert calls.accounts.held_by(slow.peer, Shared.CALLS) == 0


async def test_call_that_ranks_gives_way_with_an_error():
    """Its caller has two of two calls, and another one asks."""
    calls = CallsInFlight(Limits(max_calls=2))
    with calls.enter(FakeCall(1), "Rerank"), calls.enter(FakeCall(1), "Rerank") as later:

        async def rank() -> None:
            async with later.answering():
                await asyncio.sleep(10)

        ranking = asyncio.create_task(rank())
        await asyncio.sleep(0)
        with (
            calls.enter(FakeCall(2), "Rerank"),
            pytest.raises(Overloaded, match="2 of them yours, the most; the limit is 2"),
        ):
            await ranking
        with pytest.raises(Overloaded, match="the most"):
            async with later.answering():
                await asyncio.sleep(10)


@asynccontextmanager
async def slot(calls: CallsInFlight, peer: str, seconds: float) -> AsyncIterator[None]:
    """A slot of a message, which must come within this time."""
    async with asyncio.timeout(seconds) as arrival, calls.slots.slot(peer, arrival, seconds):
        yield


async def test_one_message_in_time_does_not_forgive_those_that_were_late():
    calls = CallsInFlight(Limits())
    for _ in range(2):
        with pytest.raises(TimeoutError):
            async with slot(calls, "a", 0.01):
                await asyncio.sleep(1)
    async with slot(calls, "a", 1):
        pass
    assert calls.slots._ranks == {"a": 2}
    async with slot(calls, "b", 1):
        pass
    assert calls.slots._ranks == {"a": 2, "b": -1}


async def test_drain_ends_the_latest_call_that_ranks_first():
    calls = CallsInFlight(Limits())
    with calls.enter(FakeCall(1), "Rerank") as earlier, calls.enter(FakeCall(2), "Rerank") as later:
        earlier.ranks, later.ranks = asyncio.timeout(None), asyncio.timeout(None)
        async with earlier.ranks:
            with suppress(TimeoutError):
                async with later.ranks:
                    assert calls.end_latest()
                    await asyncio.sleep(1)
        assert later.ranks.expired()
        assert not earlier.ranks.expired()
