"""Calls that give way, bytes in flight, and places of messages, without a service around them."""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from rerank.config import Limits
from rerank.engine.accounts import Shared
from rerank.errors import DeadlineExceeded, Overloaded
from rerank.service.limits import SMALL_MESSAGE, CallInFlight, CallsInFlight

#: Bytes of a message that is not small.
LARGE = 1 << 20


class Port:
    """A call whose message never comes."""

    def __init__(self, connection: int = 1) -> None:
        self.peer, self.request_id, self.deadline_s = f"ipv4:127.0.0.1:{connection}", "r", math.inf
        self.authorization: str | None = None
        self.hung_up = False

    async def read(self, slot: AbstractAsyncContextManager[None]) -> bytes:
        async with slot:
            await asyncio.Event().wait()
        return b""

    def hang_up(self) -> None:
        self.hung_up = True


async def test_answer_replaces_the_bytes_of_its_request():
    calls = CallsInFlight(Limits(max_bytes_in_flight=1000))
    first, second = (CallInFlight(Port(number), calls, "Rerank").usage for number in (1, 2))
    calls.hold(first, LARGE)
    with pytest.raises(Overloaded, match=f"{LARGE} bytes in flight, 0 of them yours; {LARGE + 1} more exceed"):
        calls.hold(second, LARGE + 1)
    calls.hold(first, LARGE)
    calls.hold(second, SMALL_MESSAGE)
    assert calls.accounts.held_by(first.name, Shared.BYTES) == LARGE
    calls.hold(first, SMALL_MESSAGE)
    calls.hold(second, LARGE)


async def test_message_is_not_read_after_its_deadline():
    calls, late = CallsInFlight(Limits()), Port(1)
    late.deadline_s = 0.0
    with calls.enter(late, "Rerank") as call, pytest.raises(DeadlineExceeded, match="while the request arrived"):
        await asyncio.wait_for(call.receive(), 1)


async def test_unread_answer_gives_way_with_its_connection():
    calls, slow = CallsInFlight(Limits(max_calls=1)), Port(1)
    with calls.enter(slow, "Rerank") as call:
        call.reply(b"answer")
    with calls.enter(Port(2), "Rerank"):
        assert slow.hung_up
    assert call.unread is not None
    assert call.unread.cancelled()
    calls.leave(slow)
    assert calls.accounts.held_by(slow.peer, Shared.CALLS) == 0


async def test_call_that_ranks_gives_way_with_an_error():
    """Its caller has two of two calls, and another one asks."""
    calls = CallsInFlight(Limits(max_calls=2))
    with calls.enter(Port(1), "Rerank"), calls.enter(Port(1), "Rerank") as later:

        async def rank() -> None:
            async with later.answering():
                await asyncio.sleep(10)

        ranking = asyncio.create_task(rank())
        await asyncio.sleep(0)
        with (
            calls.enter(Port(2), "Rerank"),
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
    with calls.enter(Port(1), "Rerank") as earlier, calls.enter(Port(2), "Rerank") as later:
        earlier.ranks, later.ranks = asyncio.timeout(None), asyncio.timeout(None)
        async with earlier.ranks:
            with pytest.raises(TimeoutError):
                await rank_until_ended(calls, later)
        assert not earlier.ranks.expired()


async def rank_until_ended(calls: CallsInFlight, call: CallInFlight) -> None:
    assert call.ranks is not None
    async with call.ranks:
        assert calls.end_latest()
        await asyncio.sleep(1)
