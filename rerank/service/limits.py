"""The limits of calls: key, number, bytes and time. A port answers each call in the block of `CallsInFlight.enter`."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, ParamSpec, TypeVar
from weakref import WeakValueDictionary

from rerank.access.keys import CallerLimits, KeyStore
from rerank.config import Limits
from rerank.engine.request import CallerShare
from rerank.errors import DeadlineExceeded, Overloaded, RerankError, ShuttingDown
from rerank.service.call import CallRecord, OnEnd, PortCall

if TYPE_CHECKING:
    from rerank.reranking.reranker import AsyncReranker

T = TypeVar("T")
P = ParamSpec("P")
log = logging.getLogger(__name__)

#: A caller may have this many times as many calls as are free, so that others always find room.
_SHARE = 3
#: Calls without a message that may be ending at the same time, because a client that does not read delays their end.
_MAX_ENDING = 100
#: Messages up to this size are converted at once and do not count as bytes in flight: `max_calls` bounds them.
SMALL_MESSAGE = 64 * 1024
#: Places of messages that are received at the same time, in all and of one connection.
_PLACES, _PLACES_OF_ONE = 16, 2
#: Seconds that messages have to arrive while others wait for a slot.
_CONTENDED_TRANSFER_S = 0.15
#: Connections whose conduct is remembered.
_REMEMBERED = 10_000
_ANYONE = CallerLimits()


class CallInFlight(CallRecord):
    """A call that has a slot among those in flight until its client has read the answer."""

    def __init__(self, port: PortCall, calls: CallsInFlight, method: str) -> None:
        super().__init__(method, port.request_id, port.peer)
        self.port, self._calls = port, calls
        #: Counts its slot: the name of its key, or else its connection.
        self.caller = port.peer
        #: What its key may do.
        self.limits = _ANYONE
        #: Bytes of its message, then of its answer.
        self.size = 0
        #: The time limit of its message while that is awaited, and of the block that ranks.
        self.arrival: asyncio.Timeout | None = None
        self.ranks: asyncio.Timeout | None = None
        #: Ends the connection if the answer is not read.
        self.unread: asyncio.TimerHandle | None = None

    async def receive(self) -> bytes | bytearray:
        """Reads the message.

        Raises: Overloaded if it does not come in time or is too large; ShuttingDown; DeadlineExceeded; what
            `PortCall.read` raises.
        """
        calls, limit_s = self._calls, self._calls.limits.max_transfer_s
        try:
            async with asyncio.timeout(limit_s) as self.arrival:
                message = await self.port.read(calls.slots.slot(self.peer, self.arrival, limit_s))
        except TimeoutError as error:
            if calls.is_drained:
                raise _shutting_down() from error
            raise _overloaded("max_transfer_s", "the request did not arrive in time; send it faster") from error
        finally:
            self.arrival = None
        if self.port.deadline_s <= _now():
            raise DeadlineExceeded("the deadline passed while the request arrived; allow more time")
        if len(message) > SMALL_MESSAGE:
            await asyncio.sleep(0)  # copying 16 MB took some ms, and so does parsing: others are served in between
        calls.hold(self, len(message))
        return message

    async def convert(self, reranker: AsyncReranker, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Calls a function: off the event loop if the message is large."""
        if self.size <= SMALL_MESSAGE:
            return function(*args, **kwargs)
        return await reranker.convert(function, *args, **kwargs)

    @asynccontextmanager
    async def answering(self) -> AsyncIterator[tuple[float, CallerShare]]:
        """Runs a block that ranks, and that the drain may end. Raises: ShuttingDown.

        Yields:
            The earlier of the caller's deadline and the service's, on the event loop's clock; and the share of the
            engine.
        """
        calls = self._calls
        share = CallerShare(self.caller, partial(calls.queueing, self)) if self.key else CallerShare(self.caller)
        self.ranks = timeout = asyncio.timeout(0 if calls.is_drained else None)
        try:
            async with timeout:
                yield min(self.port.deadline_s, _now() + calls.limits.max_request_s), share
        except TimeoutError as error:
            if not timeout.expired():
                raise
            raise _shutting_down() from error
        finally:
            self.ranks = None

    def reply(self, body: bytes) -> bytes:
        """Counts the bytes of an answer until the client has read it, or is too slow and loses its connection.

        Raises: Overloaded.
        """
        self._calls.hold(self, len(body))
        later = asyncio.get_running_loop().call_later
        self.unread = later(self._calls.limits.max_transfer_s, self._calls.end_unread, self)
        return body


class CallsInFlight:
    """Bounds the calls in flight and their messages: how many, how many bytes, and how long they take.

    Args:
        limits: limits on all calls together.
        keys: the callers, if a call needs a key.

    Attributes:
        limits: those in force.
        is_shutting_down: whether new calls are refused.
        is_drained: whether the calls in flight end, too.
        slots: of messages that are received.
    """

    def __init__(self, limits: Limits, keys: KeyStore | None = None) -> None:
        self.limits = limits
        self.is_shutting_down = self.is_drained = False
        self._keys = keys
        #: In the order of their arrival.
        self._calls: dict[PortCall, CallInFlight] = {}
        self._ending: set[CallInFlight] = set()
        #: By the caller of calls, and by the name of the key.
        self._calls_of, self._tokens_of = Counter[str](), defaultdict[str, float](float)
        self._bytes = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self.slots = _ReceivingSlots()

    def of_streams(self, number: int) -> CallsInFlight:
        """Another count, of streams, with room for this number of them and with the same slots for messages."""
        streams = CallsInFlight(self.limits.model_copy(update={"max_calls": number}))
        streams.slots = self.slots
        return streams

    @property
    def number(self) -> int:
        return len(self._calls)

    def peers(self) -> set[str]:
        """The clients' connections that have calls in flight; also for other threads."""
        return {call.peer for call in list(self._calls.values())}

    @contextmanager
    def enter(self, port: PortCall, method: str, on_end: OnEnd | None = None) -> Iterator[CallInFlight]:
        """Counts a call as in flight until `leave`. In the block, it is answered.

        If there is no room, the call ends that waits for its message for longest.

        Args:
            port: the call.
            method: its name, for the record.
            on_end: observes the call when the block has ended.

        Raises: Unauthenticated, ShuttingDown, Overloaded; what the block raises. What is no RerankError is logged.
        """
        start_s, call = time.perf_counter(), CallInFlight(port, self, method)
        try:
            if self._keys is not None:
                call.limits = key = self._keys.authenticate(port.authorization)
                call.key = call.caller = key.name
            if self.is_shutting_down:
                raise ShuttingDown("the service is shutting down; send the request to another replica")
            self._make_room(call)
            self._calls[port] = call
            self._calls_of[call.caller] += 1
            self._idle.clear()
            yield call
        except asyncio.CancelledError:
            call.is_cancelled = True
            raise
        except Exception as error:
            call.error = error
            if not isinstance(error, RerankError):
                log.exception("bug in %s, request %s", method, call.request_id)
            raise
        finally:
            call.seconds = time.perf_counter() - start_s
            if on_end is not None:
                on_end(call)

    def _make_room(self, new: CallInFlight) -> None:
        """Ends a call that waits for its message if there is no room for another one. Raises: Overloaded."""
        calls, own, limit = len(self._calls) - len(self._ending), self._calls_of[new.caller], self.limits.max_calls
        if new.limits.max_calls is not None and own >= new.limits.max_calls:
            raise _key_overloaded(new, "max_calls", f"{own} calls of key {new.key} are in flight, the most it may have")
        is_full = calls >= limit
        if not is_full and own <= _SHARE * (limit - calls):
            return
        for call in self._calls.values() if len(self._ending) < _MAX_ENDING else ():
            arrival, may_end = call.arrival, (is_full or call.caller == new.caller) and call not in self._ending
            if may_end and arrival is not None and not arrival.expired():
                self._ending.add(call)
                arrival.reschedule(0)
                return
        raise _overloaded("max_calls", f"{calls} calls are in flight, {own} of them yours, the most that may be")

    @contextmanager
    def queueing(self, call: CallInFlight, tokens: float) -> Iterator[None]:
        """Reserves tokens of the quota of a call's key during the block. Raises: Overloaded."""
        key, queued, limit = call.key, self._tokens_of[call.key], call.limits.max_queue_tokens
        if limit is not None and queued and queued + tokens > limit:
            problem = f"{queued:.0f} tokens of key {key} are in work; {tokens:.0f} more exceed its limit of {limit}"
            raise _key_overloaded(call, "max_queue_tokens", problem, queued_tokens=f"{queued:.0f}")
        self._tokens_of[key] += tokens
        try:
            yield
        finally:
            self._tokens_of[key] -= tokens

    def hold(self, call: CallInFlight, size: int) -> None:
        """Reserves bytes in flight; the reply's size replaces the request's. Raises: Overloaded."""
        limit, others = self.limits.max_bytes_in_flight, self._bytes - call.size
        if others and others + size > limit and size > SMALL_MESSAGE:
            raise _overloaded("max_bytes_in_flight", f"{others} bytes in flight + {size} exceed the limit of {limit}")
        call.size, self._bytes = size, others + size

    def leave(self, port: PortCall) -> None:
        """Ends a call when its client has the answer or is gone; does nothing if the call never was in flight."""
        call = self._calls.pop(port, None)
        if call is None:
            return
        self._ending.discard(call)
        self._calls_of[call.caller] -= 1
        if not self._calls_of[call.caller]:
            del self._calls_of[call.caller]
        self._bytes -= call.size
        if call.unread is not None:
            call.unread.cancel()
        if not self._calls:
            self._idle.set()

    def end_unread(self, call: CallInFlight) -> None:
        """Ends a connection once, although several of its answers may be late together."""
        for other in self._calls.values():
            if other.peer == call.peer and other.unread is not None:
                other.unread.cancel()
        log.warning("%s did not read an answer within %g s: its connection ends", call.peer, self.limits.max_transfer_s)
        call.port.hang_up()

    async def wait_until_idle(self) -> None:
        await self._idle.wait()

    def begin_drain(self) -> None:
        """Refuses new calls from now on."""
        self.is_shutting_down = True

    def end_latest(self) -> bool:
        """Ends the latest call that ranks. Returns: False if none does."""
        for call in reversed(self._calls.values()):
            if call.ranks is not None and not call.ranks.expired():
                call.ranks.reschedule(0)
                return True
        return False

    def end_drain(self) -> None:
        """Ends the calls that wait for their message or rank."""
        self.is_drained = True
        for call in self._calls.values():
            for timeout in (call.arrival, call.ranks):
                if timeout is not None and not timeout.expired():
                    timeout.reschedule(0)


def _overloaded(exceeded: str, problem: str, **details: str) -> Overloaded:
    """The error of a call that exceeds the limit of this name."""
    return Overloaded(f"{problem}; retry in 1 s", 1.0, {"exceeded": exceeded, **details})


def _key_overloaded(call: CallInFlight, limit: str, problem: str, **details: str) -> Overloaded:
    """The error of a call that exceeds the limit of this name of its key."""
    return _overloaded(f"{limit} of the key", problem, key=call.key, limit=str(getattr(call.limits, limit)), **details)


def _shutting_down() -> ShuttingDown:
    return ShuttingDown("the service is shutting down before it can answer; send the request to another replica")


class _ReceivingSlots:
    """Gives slots to the messages that are received: first to connections whose messages have come in time.

    Each message may need the memory of the largest one. Further ones wait, and messages that are announced and not sent
    hold up only each other.
    """

    def __init__(self) -> None:
        self._free = _PLACES
        self._of_one: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        #: Rank, number and turn of the messages that wait, as a heap.
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()
        self._timeouts: set[asyncio.Timeout] = set()
        #: Connection → how many of its messages were late; -1 if none was and one came in time.
        self._ranks: dict[str, int] = {}

    @asynccontextmanager
    async def slot(self, peer: str, arrival: asyncio.Timeout, seconds: float) -> AsyncIterator[None]:
        """Waits for a slot, and keeps it during the block.

        Args:
            peer: the connection of the message.
            arrival: ends the block; it is set to the time that the message may take.
            seconds: how long it may take if nobody waits for a slot.
        """
        async with self._of_one.setdefault(peer, asyncio.Semaphore(_PLACES_OF_ONE)):
            if self._free:
                self._free -= 1
            else:
                await self._wait_for_turn(peer)
            self._timeouts.add(arrival)
            try:
                arrival.reschedule(_now() + (_CONTENDED_TRANSFER_S if self._waiting else seconds))
                yield
                self._ranks[peer] = self._ranks.pop(peer, 0) or -1
            except asyncio.CancelledError:
                if arrival.expired():
                    self._ranks[peer] = max(self._ranks.pop(peer, 0), 0) + 1
                raise
            finally:
                if len(self._ranks) > _REMEMBERED:
                    del self._ranks[next(iter(self._ranks))]
                self._timeouts.discard(arrival)
                self._give()

    async def _wait_for_turn(self, peer: str) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (self._ranks.get(peer, 0), next(self._numbers), turn))
        self._shorten_arrivals()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # its turn came at the same moment
                self._give()
            raise

    def _give(self) -> None:
        """Hands a free slot to the next waiter."""
        while self._waiting:
            *_, turn = heapq.heappop(self._waiting)
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1

    def _shorten_arrivals(self) -> None:
        """Gives the messages that are received only a short time more."""
        soon_s = _now() + _CONTENDED_TRANSFER_S
        for timeout in self._timeouts:
            if not timeout.expired():  # it may have passed a moment ago, and its call not have learned of it yet
                timeout.reschedule(min(timeout.when() or soon_s, soon_s))


def _now() -> float:
    return asyncio.get_running_loop().time()
