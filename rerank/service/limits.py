"""The limits of calls: key, number, bytes and time. A port answers each call in the block of `CallsInFlight.enter`."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, ParamSpec, TypeVar
from weakref import WeakValueDictionary

from rerank.access.keys import KeyStore
from rerank.config import Limits
from rerank.engine.accounts import Accounts, CallUsage, Shared
from rerank.errors import DeadlineExceeded, Overloaded, RerankError, ShuttingDown
from rerank.service.call import CallRecord, OnEnd, PortCall

if TYPE_CHECKING:
    from rerank.reranking.reranker import AsyncReranker

T = TypeVar("T")
P = ParamSpec("P")
log = logging.getLogger(__name__)

#: Messages up to this size are converted at once and do not count as bytes in flight: `max_calls` bounds them.
SMALL_MESSAGE = 64 * 1024
#: Messages that are received at the same time.
_SLOTS = 16
#: The same for calls whose messages should be short.
SHORT_SLOTS = 4
#: Messages of one connection that are received at the same time.
_SLOTS_OF_CONNECTION = 2
#: Seconds in which a message must arrive while others wait for a slot.
_CONTENDED_TRANSFER_S = 0.15
#: Largest number of connections whose punctuality is remembered: whether their messages came in time.
_MAX_RANKS = 10_000


class CallInFlight(CallRecord):
    """A call that has a slot among those in flight until its client has read the answer."""

    def __init__(self, port: PortCall, calls: CallsInFlight, method: str) -> None:
        super().__init__(method, port.request_id, port.peer)
        self.port, self._calls = port, calls
        #: The shared resources that the call uses, as a part of what its key, or else its connection, uses.
        self.usage = CallUsage(port.peer, give_way=self._give_way)
        #: Bytes of the message.
        self.size = 0
        #: The time limit of the message, while the call waits for it.
        self.arrival: asyncio.Timeout | None = None
        #: The time limit of the block that ranks, while it runs.
        self.ranks: asyncio.Timeout | None = None
        #: Ends the connection if the client does not read the answer, or the latest answer of a stream.
        self.unread: asyncio.TimerHandle | None = None

    async def receive(self) -> bytes | bytearray:
        """Reads the message.

        Raises: Overloaded if the message does not come in time or exceeds the bytes in flight; ShuttingDown;
            DeadlineExceeded; what `PortCall.read` raises.
        """
        calls, limit_s = self._calls, self._calls.limits.max_transfer_s
        self._check_deadline()  # before gRPC receives a message whose sender has given up
        self.usage.is_idle = True
        try:
            async with asyncio.timeout(limit_s) as self.arrival:
                message = await self.port.read(calls.slots.slot(self.peer, self.arrival, limit_s))
        except TimeoutError as error:
            if calls.is_drained or self.usage.ended_by is not None:
                raise self.usage.ended_by or _shutting_down() from error
            problem = "the request did not arrive in time; send it faster; retry in 1 s"
            raise Overloaded(problem, 1.0, {"exceeded": "max_transfer_s"}) from error
        finally:
            self.arrival, self.usage.is_idle = None, False
        self._check_deadline()
        if len(message) > SMALL_MESSAGE:
            await asyncio.sleep(0)  # copying 16 MB took some ms, and so does parsing: others are served in between
        calls.hold(self.usage, len(message))
        self.size = len(message)
        return message

    def _check_deadline(self) -> None:
        if self.port.deadline_s <= _now():
            raise DeadlineExceeded("the deadline passed while the request arrived; allow more time")

    async def convert(self, reranker: AsyncReranker, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Returns what a function returns; for a large message, it is called off the event loop."""
        if self.size <= SMALL_MESSAGE:
            return function(*args, **kwargs)
        return await reranker.convert(function, *args, **kwargs)

    @asynccontextmanager
    async def answering(self) -> AsyncIterator[tuple[float, CallUsage]]:
        """Runs a block that ranks.

        Yields:
            The earlier of the caller's deadline and the service's, in seconds on the event loop's clock; and the usage
            of this call.

        Raises: ShuttingDown in the drain; Overloaded if the call gives way to another caller.
        """
        calls = self._calls
        self.ranks = timeout = asyncio.timeout(0 if calls.is_drained or self.usage.ended_by else None)
        try:
            async with timeout:
                yield min(self.port.deadline_s, _now() + calls.limits.max_request_s), self.usage
        except TimeoutError as error:
            if not timeout.expired():
                raise
            raise self.usage.ended_by or _shutting_down() from error
        finally:
            self.ranks = None

    def reply(self, body: bytes) -> bytes:
        """Counts the bytes of an answer until the client has read it. The connection of a slow client is ended.

        Raises: Overloaded.
        """
        self._calls.hold(self.usage, len(body))
        self.usage.is_idle = True
        later = asyncio.get_running_loop().call_later
        self.unread = later(self._calls.limits.max_transfer_s, self._calls.end_unread, self)
        return body

    def _give_way(self) -> None:
        """Ends the call: with the error in `usage.ended_by`, or with its connection if its answer is not read."""
        for timeout in (self.arrival, self.ranks):
            if timeout is not None:
                if not timeout.expired():
                    timeout.reschedule(0)
                return
        if self.unread is not None:
            self._calls.hang_up(self)


class CallsInFlight:
    """Bounds the calls in flight and their messages: their number, their bytes and their times.

    Args:
        limits: limits on all calls together.
        keys: the API keys, if calls need one.
        accounts: the resources that callers use; None: a new object, for these calls alone.
        slots: the number of messages that are received at the same time.

    Attributes:
        is_shutting_down: whether new calls are refused.
        is_drained: whether the calls in flight end, too.
        slots: the slots of messages that are received.
    """

    def __init__(
        self, limits: Limits, keys: KeyStore | None = None, accounts: Accounts | None = None, slots: int = _SLOTS
    ) -> None:
        self.limits, self.accounts = limits, accounts or Accounts({})
        self.accounts.limits |= {Shared.CALLS: limits.max_calls, Shared.BYTES: limits.max_bytes_in_flight}
        self.is_shutting_down = self.is_drained = False
        self._keys = keys
        #: The calls in flight, in the order of their arrival.
        self._calls: dict[PortCall, CallInFlight] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self.slots = _ReceivingSlots(slots)

    def for_streams(self, number: int) -> CallsInFlight:
        """An object that counts streams, at most `number` of them, and shares the slots for messages."""
        streams = CallsInFlight(self.limits.model_copy(update={"max_calls": number}))
        streams.slots = self.slots
        return streams

    @property
    def number(self) -> int:
        return len(self._calls)

    def peers(self) -> set[str]:
        """The clients' connections that have calls in flight. May be called on any thread."""
        return {call.peer for call in list(self._calls.values())}

    @contextmanager
    def enter(self, port: PortCall, method: str, on_end: OnEnd | None = None) -> Iterator[CallInFlight]:
        """Counts a call as in flight until `leave`. The block answers the call.

        Beyond the limit, a call of the caller with the most calls gives way, see `Accounts`.

        Args:
            port: the call.
            method: the method's name, for the record.
            on_end: observes the call when the block has ended.

        Raises: Unauthenticated, ShuttingDown, Overloaded; what the block raises. Other exceptions than a RerankError
            are logged as bugs.
        """
        start_s, call = time.perf_counter(), CallInFlight(port, self, method)
        try:
            if self._keys is not None:
                key = self._keys.authenticate(port.authorization)
                call.key = call.usage.name = key.name
                quotas = {Shared.CALLS: key.max_calls, Shared.TOKENS: key.max_queue_tokens}
                call.usage.quotas = {kind: quota for kind, quota in quotas.items() if quota is not None}
            if self.is_shutting_down:
                raise ShuttingDown("the service is shutting down; send the request to another replica")
            self.accounts.check_quota(call.usage, Shared.CALLS, 1)
            self.accounts.acquire(call.usage, Shared.CALLS, 1)
            self._calls[port] = call
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

    def hold(self, usage: CallUsage, size: int) -> None:
        """Counts bytes in flight. The size of a reply replaces the request's. Raises: Overloaded."""
        self.accounts.release(usage, Shared.BYTES)
        if size > SMALL_MESSAGE:
            self.accounts.acquire(usage, Shared.BYTES, size)

    def leave(self, port: PortCall) -> None:
        """Ends a call whose client has the answer or has gone. Does nothing if the call is not in flight."""
        call = self._calls.pop(port, None)
        if call is None:
            return
        self.accounts.leave(call.usage)
        if call.unread is not None:
            call.unread.cancel()
        if not self._calls:
            self._idle.set()

    def end_unread(self, call: CallInFlight) -> None:
        """Ends a connection whose client did not read an answer in time."""
        log.warning("%s did not read an answer within %g s: its connection ends", call.peer, self.limits.max_transfer_s)
        self.hang_up(call)

    def hang_up(self, call: CallInFlight) -> None:
        """Ends the connection of a call, and the timers of its other unread answers."""
        for other in self._calls.values():
            if other.peer == call.peer and other.unread is not None:
                other.unread.cancel()
        call.port.hang_up()

    async def wait_until_idle(self) -> None:
        await self._idle.wait()

    def begin_drain(self) -> None:
        """Makes new calls fail with ShuttingDown."""
        self.is_shutting_down = True

    def end_latest(self) -> bool:
        """Ends the latest call that ranks. Returns False if no call ranks."""
        for call in reversed(self._calls.values()):
            if call.ranks is not None and not call.ranks.expired():
                call.ranks.reschedule(0)
                return True
        return False

    def end_drain(self) -> None:
        """Ends the calls that wait for their message, and those that rank."""
        self.is_drained = True
        for call in self._calls.values():
            for timeout in (call.arrival, call.ranks):
                if timeout is not None and not timeout.expired():
                    timeout.reschedule(0)


def _shutting_down() -> ShuttingDown:
    return ShuttingDown("the service is shutting down before it can answer; send the request to another replica")


class _ReceivingSlots:
    """Slots of the messages that are received at the same time, because each may take the memory of the largest one.

    Further messages wait for a slot. Connections whose messages came in time go first, so that clients that announce
    messages and do not send them hold up only each other.
    """

    def __init__(self, number: int) -> None:
        self._free = number
        #: Connection → its own limit on slots.
        self._by_peer: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        #: Heap of (rank of the connection, order of arrival, future that is set when there is a slot).
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()
        self._timeouts: set[asyncio.Timeout] = set()
        #: Connection → the number of its messages that were late; -1 if none was late and one came in time.
        self._ranks: dict[str, int] = {}

    @asynccontextmanager
    async def slot(self, peer: str, arrival: asyncio.Timeout, seconds: float) -> AsyncIterator[None]:
        """Waits for a slot, and keeps it during the block.

        Args:
            peer: the connection of the message.
            arrival: the time limit of the block, which is set here once there is a slot.
            seconds: the time that the message may take if no other message waits for a slot.
        """
        async with self._by_peer.setdefault(peer, asyncio.Semaphore(_SLOTS_OF_CONNECTION)):
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
                if len(self._ranks) > _MAX_RANKS:
                    del self._ranks[next(iter(self._ranks))]
                self._timeouts.discard(arrival)
                self._release()

    async def _wait_for_turn(self, peer: str) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (self._ranks.get(peer, 0), next(self._numbers), turn))
        self._shorten_arrivals()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # its turn came at the same moment
                self._release()
            raise

    def _release(self) -> None:
        """Passes a free slot to the next waiting message."""
        while self._waiting:
            *_, turn = heapq.heappop(self._waiting)
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1

    def _shorten_arrivals(self) -> None:
        """Shortens the time limits of the messages that are received now, because others wait."""
        soon_s = _now() + _CONTENDED_TRANSFER_S
        for timeout in self._timeouts:
            if not timeout.expired():  # an expired timeout of a call that was not resumed yet cannot be rescheduled
                timeout.reschedule(min(timeout.when() or soon_s, soon_s))


def _now() -> float:
    return asyncio.get_running_loop().time()
