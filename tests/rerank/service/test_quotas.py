"""Quotas of tokens and bytes, and slots of messages, without a service around them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from rerank.access.keys import CallerLimits
from rerank.config import Limits
from rerank.errors import Overloaded
from rerank.service.limits import CallInFlight, CallsInFlight

#: Bytes of a message that is not small.
LARGE = 1 << 20


class Port:
    """A call whose message never comes."""

    def __init__(self, connection: int = 1) -> None:
        self.peer, self.request_id, self.deadline_s = f"ipv4:127.0.0.1:{connection}", "r", math.inf
        self.authorization: str | None = None

    async def read(self, slot: AbstractAsyncContextManager[None]) -> bytes:
        async with slot:
            await asyncio.Event().wait()
        return b""

    def hang_up(self) -> None:
        pass


def call_of_key(calls: CallsInFlight, most: int) -> CallInFlight:
    call = CallInFlight(Port(), calls, "Rerank")
    call.key, call.limits = "mine", CallerLimits(max_queue_tokens=most)
    return call


async def test_request_above_its_quota_runs_alone_and_frees_the_quota_when_it_ends() -> None:
    calls = CallsInFlight(Limits())
    call = call_of_key(calls, 100)

    def add(tokens: float) -> None:
        with calls.queueing(call, tokens):
            pass

    for _ in range(2):
        with calls.queueing(call, 500), pytest.raises(Overloaded, match="500 tokens of key mine are in work; 1 more"):
            add(1)
    with calls.queueing(call, 60):
        add(40)
        with pytest.raises(Overloaded, match="60 tokens of key mine are in work; 41 more exceed its limit of 100"):
            add(41)


async def test_message_above_the_bytes_in_flight_is_read_alone() -> None:
    calls = CallsInFlight(Limits(max_bytes_in_flight=1000))
    first, second = (CallInFlight(Port(number), calls, "Rerank") for number in (1, 2))
    calls.hold(first, LARGE)
    with pytest.raises(Overloaded, match=f"{LARGE} bytes in flight \\+ {LARGE} exceed the limit of 1000"):
        calls.hold(second, LARGE)
    calls.hold(first, LARGE)  # its reply replaces its request


@asynccontextmanager
async def slot(calls: CallsInFlight, peer: str, seconds: float) -> AsyncIterator[None]:
    """A slot of a message, which must come within this time."""
    async with asyncio.timeout(seconds) as arrival, calls.slots.slot(peer, arrival, seconds):
        yield


async def test_one_message_in_time_does_not_forgive_those_that_were_late() -> None:
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


async def test_drain_ends_the_latest_call_that_ranks_first() -> None:
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
