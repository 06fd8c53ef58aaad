"""The calls in flight: how many there may be, how many bytes they may hold, and how long they may take to arrive."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from weakref import WeakValueDictionary

from rerank.access.callers import Caller, CallerLimits
from rerank.access.keys import KeyStore
from rerank.config import Limits
from rerank.errors import Overloaded, ShuttingDown
from rerank.service.call import Call, header

log = logging.getLogger(__name__)

#: Messages that are received at the same time, in all and from one connection. Further calls wait, so that a message of
#: the largest size needs memory only when it is its turn, and slow clients leave places for other connections.
_RECEIVING, _RECEIVING_FROM_ONE = 16, 2
#: Seconds that calls have to send the rest of their messages when all places are taken.
_HURRY_S = 0.15
#: Messages up to this size are converted at once and do not count as bytes in flight: `max_calls` bounds them.
SMALL_MESSAGE = 64 * 1024


@dataclass(slots=True)
class _Held:
    """The caller of a call, the bytes that it holds, and the timer of its answer."""

    caller: Caller
    size: int = 0
    timer: asyncio.TimerHandle | None = None


class CallsInFlight:
    """Bounds the calls in flight and their messages: how many, how many bytes, and how long they take.

    Args:
        limits: limits on all calls together.
        keys: the callers, if a call needs a key.

    Attributes:
        limits: those in force; `follow` replaces them.
        is_shutting_down: whether new calls are refused.
    """

    def __init__(self, limits: Limits, keys: KeyStore | None = None) -> None:
        self.limits = limits
        self.is_shutting_down = False
        self._keys = keys
        self._anyone = Caller("", CallerLimits())
        self._held: dict[Call, _Held] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._receiving = asyncio.Semaphore(_RECEIVING)
        self._receiving_from: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._timeouts: set[asyncio.Timeout] = set()
        self._drained = False
        self._until_drained: set[asyncio.Timeout] = set()

    @property
    def number(self) -> int:
        """The number of calls in flight."""
        return len(self._held)

    def peers(self) -> set[str]:
        """The clients' connections that have calls in flight; also for other threads."""
        return {call.peer for call in list(self._held)}

    def follow(self, limits: Limits) -> None:
        """Reads the keys again, and holds calls that arrive from now on to these limits."""
        if self._keys is not None:
            self._keys.reload()
        self.limits = limits

    def authenticate(self, call: Call) -> Caller:
        """The caller of a call: the holder of its key, or one caller without limits if no call needs a key.

        Raises: Unauthenticated.
        """
        return self._anyone if self._keys is None else self._keys.authenticate(header(call, "authorization"))

    def enter(self, call: Call) -> Caller:
        """Counts a call as in flight until its answer was read, and returns its caller.

        Raises: Unauthenticated, ShuttingDown, Overloaded.
        """
        caller = self.authenticate(call)
        if self.is_shutting_down:
            raise ShuttingDown("the service is shutting down; send the request to another replica")
        if len(self._held) >= self.limits.max_calls:
            raise _overloaded("max_calls", f"{len(self._held)} calls are in flight, the most that may be")
        caller.enter()
        self._held[call] = _Held(caller)
        self._idle.clear()
        call.on_done(partial(self._leave, call))
        return caller

    async def receive(self, call: Call) -> bytes | bytearray:
        """Reads the message of a call.

        Raises: Overloaded if it does not come in time, and what `Call.read` raises.
        """
        timeout = asyncio.timeout(None)
        try:
            async with self._receiving_from.setdefault(call.peer, asyncio.Semaphore(_RECEIVING_FROM_ONE)):
                if self._receiving.locked():
                    self._hurry()
                async with self._receiving, timeout:
                    allowed_s = _HURRY_S if self._receiving.locked() else self.limits.max_transfer_s
                    timeout.reschedule(asyncio.get_running_loop().time() + allowed_s)
                    self._timeouts.add(timeout)
                    message = await call.read()
        except TimeoutError as error:
            raise _overloaded("max_transfer_s", "the request did not arrive in time; send it faster") from error
        finally:
            self._timeouts.discard(timeout)
        await asyncio.sleep(0)  # copying 16 MB took some ms, and so does parsing: others are served in between
        return message

    def _hurry(self) -> None:
        """Gives the calls that are receiving only a short time more."""
        soon_s = asyncio.get_running_loop().time() + _HURRY_S
        for timeout in self._timeouts:
            if not timeout.expired():  # it may have passed a moment ago, and its call not have learned of it yet
                timeout.reschedule(min(timeout.when() or soon_s, soon_s))

    def hold(self, call: Call, size: int) -> None:
        """Reserves bytes in flight; the reply's size replaces the request's. Raises: Overloaded."""
        held, limit = self._held[call], self.limits.max_bytes_in_flight
        others = sum(each.size for each in self._held.values()) - held.size
        if others and others + size > limit and size > SMALL_MESSAGE:
            raise _overloaded("max_bytes_in_flight", f"{others} bytes in flight + {size} exceed the limit of {limit}")
        held.size = size

    def expect_read(self, call: Call, size: int) -> None:
        """Counts the bytes of an answer until the client has read it; one that is too slow loses its connection.

        Raises: Overloaded.
        """
        self.hold(call, size)
        later = asyncio.get_running_loop().call_later
        self._held[call].timer = later(self.limits.max_transfer_s, self._end_unread, call)

    def _leave(self, call: Call) -> None:
        held = self._held.pop(call)
        held.caller.leave()
        if held.timer is not None:
            held.timer.cancel()
        if not self._held:
            self._idle.set()

    def _end_unread(self, call: Call) -> None:
        """Ends a connection once, although several of its answers may be late together."""
        for other, held in self._held.items():
            if other.peer == call.peer and held.timer is not None:
                held.timer.cancel()
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
