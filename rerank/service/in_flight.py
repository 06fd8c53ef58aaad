"""The calls in flight: how many there may be, how many bytes they may hold, and how long they may take to arrive."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

from rerank.access.callers import Caller, CallerLimits
from rerank.access.keys import KeyStore
from rerank.config import Limits
from rerank.errors import Overloaded, ShuttingDown
from rerank.service.call import Call, header
from rerank.service.receiving import ReceivingPlaces

log = logging.getLogger(__name__)

#: A caller may have this many times as many calls as are free, so that others always find room.
_SHARE = 3
#: Calls without a message that may be ending at the same time, because a client that does not read delays their end.
_MAX_ENDING = 100
#: Messages up to this size are converted at once and do not count as bytes in flight: `max_calls` bounds them.
SMALL_MESSAGE = 64 * 1024


@dataclass(slots=True)
class _Held:
    """A call in flight.

    Attributes:
        caller: the holder of its key.
        sharer: by whom its place is counted: the name of the key, or else the connection.
        size: the bytes of its message, then of its answer.
        arrival: the time limit of its message while that is awaited.
        unread: ends the connection if the answer is not read.
    """

    caller: Caller
    sharer: str
    size: int = 0
    arrival: asyncio.Timeout | None = None
    unread: asyncio.TimerHandle | None = None


class CallsInFlight:
    """Bounds the calls in flight and their messages: how many, how many bytes, and how long they take.

    Args:
        limits: limits on all calls together.
        keys: the callers, if a call needs a key.

    Attributes:
        limits: those in force.
        is_shutting_down: whether new calls are refused.
    """

    def __init__(self, limits: Limits, keys: KeyStore | None = None) -> None:
        self.limits = limits
        self.is_shutting_down = False
        self._keys = keys
        self._anyone = Caller("", CallerLimits())
        self._held: dict[Call, _Held] = {}
        self._ending: set[Call] = set()
        self._calls_of = Counter[str]()
        self._bytes = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._places = ReceivingPlaces()
        self._drained = False
        self._until_drained: set[asyncio.Timeout] = set()

    @property
    def number(self) -> int:
        return len(self._held)

    def peers(self) -> set[str]:
        """The clients' connections that have calls in flight; also for other threads."""
        return {call.peer for call in list(self._held)}

    def authenticate(self, call: Call) -> Caller:
        """The caller of a call: the holder of its key, or one caller without limits if no call needs a key.

        Raises: Unauthenticated.
        """
        return self._anyone if self._keys is None else self._keys.authenticate(header(call, "authorization"))

    def enter(self, call: Call) -> Caller:
        """Counts a call as in flight until its answer was read, and returns its caller.

        If there is no room, the call ends that waits for its message for longest.

        Raises: Unauthenticated, ShuttingDown, Overloaded.
        """
        caller = self.authenticate(call)
        if self.is_shutting_down:
            raise ShuttingDown("the service is shutting down; send the request to another replica")
        sharer = caller.name or call.peer
        self._make_room(sharer)
        caller.enter()
        self._held[call] = _Held(caller, sharer)
        self._calls_of[sharer] += 1
        self._idle.clear()
        call.on_done(partial(self._leave, call))
        return caller

    def _make_room(self, sharer: str) -> None:
        """Ends a call that waits for its message if there is no room for another one. Raises: Overloaded."""
        calls, own, limit = len(self._held) - len(self._ending), self._calls_of[sharer], self.limits.max_calls
        is_full = calls >= limit
        if not is_full and own <= _SHARE * (limit - calls):
            return
        for call, held in self._held.items() if len(self._ending) < _MAX_ENDING else ():
            arrival, may_end = held.arrival, (is_full or held.sharer == sharer) and call not in self._ending
            if may_end and arrival is not None and not arrival.expired():
                self._ending.add(call)
                arrival.reschedule(0)
                return
        raise _overloaded("max_calls", f"{calls} calls are in flight, {own} of them yours, the most that may be")

    async def receive(self, call: Call) -> bytes | bytearray:
        """Reads the message of a call that has entered.

        Raises: Overloaded if it does not come in time, and what `Call.read` raises.
        """
        held, limit_s = self._held[call], self.limits.max_transfer_s
        try:
            async with asyncio.timeout(limit_s) as held.arrival:
                message = await call.read(self._places.place(call.peer, held.arrival, limit_s))
        except TimeoutError as error:
            raise _overloaded("max_transfer_s", "the request did not arrive in time; send it faster") from error
        finally:
            held.arrival = None
        await asyncio.sleep(0)  # copying 16 MB took some ms, and so does parsing: others are served in between
        return message

    def hold(self, call: Call, size: int) -> None:
        """Reserves bytes in flight; the reply's size replaces the request's. Raises: Overloaded."""
        held, limit = self._held[call], self.limits.max_bytes_in_flight
        others = self._bytes - held.size
        if others and others + size > limit and size > SMALL_MESSAGE:
            raise _overloaded("max_bytes_in_flight", f"{others} bytes in flight + {size} exceed the limit of {limit}")
        held.size, self._bytes = size, others + size

    def expect_read(self, call: Call, size: int) -> None:
        """Counts the bytes of an answer until the client has read it; one that is too slow loses its connection.

        Raises: Overloaded.
        """
        self.hold(call, size)
        later = asyncio.get_running_loop().call_later
        self._held[call].unread = later(self.limits.max_transfer_s, self._end_unread, call)

    def _leave(self, call: Call) -> None:
        held = self._held.pop(call)
        held.caller.leave()
        self._ending.discard(call)
        self._calls_of[held.sharer] -= 1
        if not self._calls_of[held.sharer]:
            del self._calls_of[held.sharer]
        self._bytes -= held.size
        if held.unread is not None:
            held.unread.cancel()
        if not self._held:
            self._idle.set()

    def _end_unread(self, call: Call) -> None:
        """Ends a connection once, although several of its answers may be late together."""
        for other, held in self._held.items():
            if other.peer == call.peer and held.unread is not None:
                held.unread.cancel()
        log.warning("%s did not read an answer within %g s: its connection ends", call.peer, self.limits.max_transfer_s)
        call.hang_up()

    async def wait_until_idle(self) -> None:
        """Waits until no call is in flight."""
        await self._idle.wait()

    @asynccontextmanager
    async def until_drained(self) -> AsyncIterator[None]:
        """Runs a block that ends with the drain, for calls that do not end with their connection.

        Raises:
            ShuttingDown: the drain has ended first.
        """
        timeout = asyncio.timeout(0 if self._drained else None)
        try:
            async with timeout:
                self._until_drained.add(timeout)
                yield
        except TimeoutError as error:
            if not timeout.expired():
                raise
            problem = "the service is shutting down and waits no longer; send the request to another replica"
            raise ShuttingDown(problem) from error
        finally:
            self._until_drained.discard(timeout)

    def begin_drain(self) -> None:
        """Refuses new calls from now on."""
        self.is_shutting_down = True

    def end_drain(self) -> None:
        """Ends the blocks of `until_drained`."""
        self._drained = True
        for timeout in self._until_drained:
            if not timeout.expired():
                timeout.reschedule(asyncio.get_running_loop().time())


def _overloaded(limit: str, problem: str) -> Overloaded:
    """The error of a call that exceeds the limit of this name."""
    return Overloaded(f"{problem}; retry in 1 s", 1.0, {"exceeded": limit})
