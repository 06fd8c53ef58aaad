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
from rerank.engine.accounts import Accounts, CallerShare, Shared
from rerank.errors import DeadlineExceeded, Overloaded, RerankError, ShuttingDown
from rerank.service.call import CallRecord, OnEnd, PortCall

if TYPE_CHECKING:
    from rerank.reranking.reranker import AsyncReranker

T = TypeVar("T")
P = ParamSpec("P")
log = logging.getLogger(__name__)

#: Messages up to this size are converted at once and do not count as bytes in flight: `max_calls` bounds them.
SMALL_MESSAGE = 64 * 1024
#: Slots of messages that are received at the same time: in all, of those that should be short, and of one connection.
_SLOTS, SHORT_SLOTS, _SLOTS_OF_ONE = 16, 4, 2
#: Seconds that messages have to arrive while others wait for a slot.
_CONTENDED_TRANSFER_S = 0.15
#: Connections whose conduct is remembered.
_REMEMBERED = 10_000


class CallInFlight(CallRecord):
    """A call that has a slot among those in flight until its client has read the answer."""

    def __init__(self, port: PortCall, calls: CallsInFlight, method: str) -> None:
        super().__init__(method, port.request_id, port.peer)
        self.port, self._calls = port, calls
        #: What it has of what all share: of the account of its key, or else of its connection.
        self.share = CallerShare(port.peer, give_way=self._give_way)
        #: Bytes of its message.
        self.size = 0
        #: The time limit of its message while that is awaited, and of the block that ranks.
        self.arrival: asyncio.Timeout | None = None
        self.ranks: asyncio.Timeout | None = None
        #: Ends the connection if the answer, or the latest one of a stream, is not read.
        self.unread: asyncio.TimerHandle | None = None

    async def receive(self) -> bytes | bytearray:
        """Reads the message.

        Raises: Overloaded if it does not come in time or is too large; ShuttingDown; DeadlineExceeded; what
            `PortCall.read` raises.
        """
        calls, limit_s = self._calls, self._calls.limits.max_transfer_s
        self._check_deadline()  # before gRPC receives what nobody waits for any more
        self.share.is_idle = True
        try:
            async with asyncio.timeout(limit_s) as self.arrival:
                message = await self.port.read(calls.slots.slot(self.peer, self.arrival, limit_s))
        except TimeoutError as error:
            if calls.is_drained or self.share.ended_by is not None:
                raise self.share.ended_by or _shutting_down() from error
            problem = "the request did not arrive in time; send it faster; retry in 1 s"
            raise Overloaded(problem, 1.0, {"exceeded": "max_transfer_s"}) from error
        finally:
            self.arrival, self.share.is_idle = None, False
        self._check_deadline()
        if len(message) > SMALL_MESSAGE:
            await asyncio.sleep(0)  # copying 16 MB took some ms, and so does parsing: others are served in between
        calls.hold(self.share, len(message))
        self.size = len(message)
        return message

    def _check_deadline(self) -> None:
        if self.port.deadline_s <= _now():
            raise DeadlineExceeded("the deadline passed while the request arrived; allow more time")

    async def convert(self, reranker: AsyncReranker, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Calls a function: off the event loop if the message is large."""
        if self.size <= SMALL_MESSAGE:
            return function(*args, **kwargs)
        return await reranker.convert(function, *args, **kwargs)

    @asynccontextmanager
    async def answering(self) -> AsyncIterator[tuple[float, CallerShare]]:
        """Runs a block that ranks. Raises: ShuttingDown in the drain; Overloaded if it gives way to another caller.

        Yields:
            The earlier of the caller's deadline and the service's, on the event loop's clock; and the share of the
            engine.
        """
        calls = self._calls
        self.ranks = timeout = asyncio.timeout(0 if calls.is_drained or self.share.ended_by else None)
        try:
            async with timeout:
                yield min(self.port.deadline_s, _now() + calls.limits.max_request_s), self.share
        except TimeoutError as error:
            if not timeout.expired():
                raise
            raise self.share.ended_by or _shutting_down() from error
        finally:
            self.ranks = None

    def reply(self, body: bytes) -> bytes:
        """Counts the bytes of an answer until the client has read it, or is too slow and loses its connection.

        Raises: Overloaded.
        """
        self._calls.hold(self.share, len(body))
        self.share.is_idle = True
        later = asyncio.get_running_loop().call_later
        self.unread = later(self._calls.limits.max_transfer_s, self._calls.end_unread, self)
        return body

    def _give_way(self) -> None:
        """Ends the call: with the error of its share, or with its connection if that would not be read either."""
        for timeout in (self.arrival, self.ranks):
            if timeout is not None:
                if not timeout.expired():
                    timeout.reschedule(0)
                return
        if self.unread is not None:
            self._calls.hang_up(self)


class CallsInFlight:
    """Bounds the calls in flight and their messages: how many, how many bytes, and how long they take.

    Args:
        limits: limits on all calls together.
        keys: the callers, if a call needs a key.
        accounts: what the callers have of what they share; None: nothing yet.
        slots: the messages that are received at the same time.

    Attributes:
        limits: those in force.
        is_shutting_down: whether new calls are refused.
        is_drained: whether the calls in flight end, too.
        slots: of messages that are received.
    """

    def __init__(
        self, limits: Limits, keys: KeyStore | None = None, accounts: Accounts | None = None, slots: int = _SLOTS
    ) -> None:
        self.limits, self.accounts = limits, accounts or Accounts({})
        self.accounts.limits |= {Shared.CALLS: limits.max_calls, Shared.BYTES: limits.max_bytes_in_flight}
        self.is_shutting_down = self.is_drained = False
        self._keys = keys
        #: In the order of their arrival.
        self._calls: dict[PortCall, CallInFlight] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self.slots = _ReceivingSlots(slots)

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

        If there is no room, a call of the caller that has the most gives way.

        Args:
            port: the call.
            method: its name, for the record.
            on_end: observes the call when the block has ended.

        Raises: Unauthenticated, ShuttingDown, Overloaded; what the block raises. What is no RerankError is logged.
        """
        start_s, call = time.perf_counter(), CallInFlight(port, self, method)
        try:
            if self._keys is not None:
                key = self._keys.authenticate(port.authorization)
                call.key = call.share.name = key.name
                quotas = {Shared.CALLS: key.max_calls, Shared.TOKENS: key.max_queue_tokens}
                call.share.quotas = {kind: most for kind, most in quotas.items() if most is not None}
            if self.is_shutting_down:
                raise ShuttingDown("the service is shutting down; send the request to another replica")
            self.accounts.check_quota(call.share, Shared.CALLS, 1)
            self.accounts.take(call.share, Shared.CALLS, 1)
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

    def hold(self, share: CallerShare, size: int) -> None:
        """Reserves bytes in flight; the reply's size replaces the request's. Raises: Overloaded."""
        self.accounts.give(share, Shared.BYTES)
        if size > SMALL_MESSAGE:
            self.accounts.take(share, Shared.BYTES, size)

    def leave(self, port: PortCall) -> None:
        """Ends a call when its client has the answer or is gone; does nothing if the call never was in flight."""
        call = self._calls.pop(port, None)
        if call is None:
            return
        self.accounts.leave(call.share)
        if call.unread is not None:
            call.unread.cancel()
        if not self._calls:
            self._idle.set()

    def end_unread(self, call: CallInFlight) -> None:
        """Ends a connection whose client did not read an answer in time."""
        log.warning("%s did not read an answer within %g s: its connection ends", call.peer, self.limits.max_transfer_s)
        self.hang_up(call)

    def hang_up(self, call: CallInFlight) -> None:
        """Ends a connection once, although several of its answers may be late together."""
        for other in self._calls.values():
            if other.peer == call.peer and other.unread is not None:
                other.unread.cancel()
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


def _shutting_down() -> ShuttingDown:
    return ShuttingDown("the service is shutting down before it can answer; send the request to another replica")


class _ReceivingSlots:
    """Gives slots to the messages that are received: first to connections whose messages have come in time.

    Each message may need the memory of the largest one. Further ones wait, and messages that are announced and not sent
    hold up only each other.
    """

    def __init__(self, number: int) -> None:
        self._free = number
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
        async with self._of_one.setdefault(peer, asyncio.Semaphore(_SLOTS_OF_ONE)):
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
