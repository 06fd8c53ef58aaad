"""Calls, whatever transport they come by: the limits of those in flight, and the one way in which each is answered."""

from __future__ import annotations

import asyncio
import logging
import math
import re
import reprlib
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeAlias
from weakref import WeakValueDictionary

from rerank.access.callers import Caller, Place
from rerank.access.keys import KeyStore
from rerank.config import Limits
from rerank.errors import Overloaded, RerankError, ShuttingDown
from rerank.service.requests import RerankRequest, SearchRequest
from rerank.service.status import REQUEST_ID, reason_of, status_name
from rerank.types import Ranking
from rerank.util.many import Pace

if TYPE_CHECKING:
    from rerank.reranking.reranker import SearchResult  # imports torch, which MCP needs only if it loads models

log = logging.getLogger(__name__)

#: Messages that are received at the same time, in all and from one connection. Further calls wait, so that a message of
#: the largest size needs memory only when it is its turn, and slow clients leave room for those of other connections.
_RECEIVING, _RECEIVING_FROM_ONE = 16, 2
#: Seconds that calls have to send the rest of their messages when all places are taken.
_HURRY_S = 0.15
#: Messages up to this size are converted at once and do not count as bytes in flight: `max_calls` bounds them.
SMALL_MESSAGE = 64 * 1024
_VALID_REQUEST_ID = re.compile(r"[!-~]{1,128}")


class Call(Protocol):
    """A call as its transport knows it."""

    @property
    def peer(self) -> str:
        """The client's connection, such as "ipv4:127.0.0.1:40000"."""
        ...

    @property
    def headers(self) -> Sequence[tuple[str, str | bytes]]:
        """Names in lower case, and values; gRPC calls them metadata."""
        ...

    @property
    def deadline(self) -> float:
        """The client's deadline on the event loop's clock, known once the message is read; infinity if it set none."""
        ...

    async def read(self) -> bytes | bytearray:
        """The message. Raises: RerankError if it is refused, CancelledError if the client hangs up."""
        ...

    def on_done(self, function: Callable[[], object]) -> None:
        """Registers what to call when the client has the answer, or the call has ended in another way."""
        ...

    def hang_up(self) -> None:
        """Ends the connection of a client that does not read its answer."""
        ...


@dataclass
class CallRecord:
    """A call and what has become of it; str() is its line in the log, without request text.

    Attributes:
        method: name of the method.
        request_id: the caller's id of the request, or a new one.
        peer: the client's connection.
        status: name of the gRPC status; CANCELLED until the call is answered, and if the client hangs up before that.
        seconds: from the arrival of the call to its answer.
        caller: the holder of its API key; None without keys, and if the call has none.
        deadline: the client's, on the event loop's clock; infinity if it set none.
        request: what was asked for; None if the call ended before that was known, and for a call that ranks nothing.
        ranking: the answer to it; None unless the call was answered.
        search: the same of a search, with its first stage.
        reply: the answer as bytes.
        error: what ended the call, if an exception did.
    """

    method: str
    request_id: str
    peer: str
    status: str = "CANCELLED"
    seconds: float = 0.0
    caller: Caller | None = None
    deadline: float = math.inf
    request: RerankRequest | SearchRequest | None = None
    ranking: Ranking | None = None
    search: SearchResult | None = None
    reply: bytes = b""
    error: Exception | None = None

    @property
    def key(self) -> str:
        """The name of the caller's API key; empty without one."""
        return self.caller.name if self.caller else ""

    @property
    def model(self) -> str | None:
        """The model that ran, or else that the request names; None for a call that ranks nothing."""
        if self.ranking is not None:
            return self.ranking.trace.model
        return None if self.request is None else self.request.options.model

    @property
    def candidates(self) -> int:
        """The number of candidates that the request has, or that the search has found."""
        if isinstance(self.request, RerankRequest):
            return len(self.request.candidates)
        return self.search.hits if self.search else 0

    def __str__(self) -> str:
        trace = self.ranking.trace if self.ranking else None
        fields = {
            "key": self.key,
            "model": trace.model if trace else reprlib.repr(self.model or ""),
            "candidates": self.candidates,
            "windows": len(trace.windows) if trace else 0,
            "failure": reason_of(trace.failure) if trace and trace.failure else "",
        }
        text = "".join(f" {name}={value}" for name, value in fields.items() if value not in ("", "''"))
        return f"{self.method} {self.status} {self.seconds * 1000:.0f} ms id={self.request_id}{text}"


OnEnd: TypeAlias = Callable[[CallRecord], None]
#: Makes the reply to a message; `RerankMethods` fills in request and ranking of the record on the way.
Respond: TypeAlias = Callable[[bytes | bytearray, CallRecord], Awaitable[bytes]]


@dataclass(frozen=True, slots=True)
class Method:
    """A method of the service.

    Attributes:
        name: its name in the log and in the metrics.
        respond: makes the reply to a message.
        calls: the limits of its calls.
        on_end: called when a call was answered, or has ended in another way.
    """

    name: str
    respond: Respond
    calls: CallsInFlight
    on_end: OnEnd


async def answer(call: Call, method: Method, stream: object | None = None) -> CallRecord:
    """Answers a call within the limits, and hands its record to `method.on_end`. Errors are in the record.

    Args:
        stream: the stream that brings the call as one of its requests, which wait for their turn; None for any other.

    Raises:
        CancelledError: the client has hung up.
    """
    start_s, record = time.perf_counter(), CallRecord(method.name, _request_id(call), call.peer)
    try:
        record.caller = method.calls.enter(call, stream)
        message = await method.calls.receive(call)
        method.calls.hold(call, len(message))
        record.deadline = call.deadline
        record.reply = await method.respond(message, record)
        method.calls.expect_read(call, len(record.reply))
        record.status = "OK"
    except Exception as error:
        if not isinstance(error, RerankError):
            log.exception("bug in %s, request %s", method.name, record.request_id)
        record.error, record.status = error, status_name(error)
    finally:
        record.seconds = time.perf_counter() - start_s
        method.on_end(record)
        if record.error is not None:
            record.error.__traceback__ = None  # its frames hold the message, and one another until a collection
    return record


def header(call: Call, name: str) -> str | None:
    """The only value of a header; None if the call has none, or several."""
    values = [value for each, value in call.headers if each == name]
    return str(values[0]) if len(values) == 1 else None


def _request_id(call: Call) -> str:
    """The caller's id of the request, or a new one if the caller sent none that fits into a line of a log."""
    given = header(call, REQUEST_ID) or ""
    return given if _VALID_REQUEST_ID.fullmatch(given) else uuid.uuid4().hex


class CallsInFlight:
    """Bounds the calls in flight and their messages: how many, how many bytes, and how long they are under way.

    Args:
        limits: limits on all calls together.
        keys: the callers, if a call needs a key.

    Attributes:
        shutting_down: whether new calls are refused; may be set.
        limits: may be replaced while calls are in flight.
    """

    def __init__(self, limits: Limits, keys: KeyStore | None = None) -> None:
        self.limits = limits
        self.keys = keys
        self.shutting_down = False
        #: Of the requests of streams without a key.
        self.pace = Pace()
        self._bytes: dict[Call, int] = {}
        self._places: dict[Call, Place] = {}
        self._timers: dict[Call, asyncio.TimerHandle] = {}
        self._blocks = 0
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
        return len(self._bytes)

    def peers(self) -> set[str]:
        """The clients' connections that have calls in flight; also for other threads."""
        return {call.peer for call in list(self._bytes)}

    async def wait_until_idle(self) -> None:
        """Waits until no call is in flight, and no block of `keep_waiting` runs."""
        await self._idle.wait()

    @contextmanager
    def keep_waiting(self) -> Iterator[None]:
        """Lets the drain wait for a block that makes calls, as its last call ends before the block does."""
        self._blocks += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._blocks -= 1
            self._note_idle()

    def _note_idle(self) -> None:
        if not self._bytes and not self._blocks:
            self._idle.set()

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

    def end_drain(self) -> None:
        """Ends the blocks of `until_drained`."""
        self._drained = True
        for timeout in self._until_drained:
            if not timeout.expired():
                timeout.reschedule(asyncio.get_running_loop().time())

    def enter(self, call: Call, stream: object | None = None) -> Caller | None:
        """Counts a call as in flight until its answer was read, and returns the holder of its key.

        Args:
            stream: see `answer`.

        Raises: Unauthenticated, ShuttingDown, Overloaded.
        """
        caller = None if self.keys is None else self.keys.authenticate(header(call, "authorization"))
        if self.shutting_down:
            raise ShuttingDown("the service is shutting down; send the request to another replica")
        if len(self._bytes) >= self.limits.max_calls:
            raise _overloaded("max_calls", f"{len(self._bytes)} calls are in flight, the most that may be")
        if caller is not None:
            self._places[call] = caller.enter(stream)
        self._bytes[call] = 0
        self._idle.clear()
        call.on_done(partial(self._leave, call))
        return caller

    async def receive(self, call: Call) -> bytes | bytearray:
        """The message of a call, when it is its turn among the calls of its key.

        Raises: Overloaded if the turn or the message does not come in time, and what `Call.read` raises.
        """
        await self._turn(call)
        timeout = asyncio.timeout(None)
        try:
            async with self._receiving_from.setdefault(call.peer, asyncio.Semaphore(_RECEIVING_FROM_ONE)):
                if self._receiving.locked():
                    self._make_room()
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

    async def _turn(self, call: Call) -> None:
        """Waits for the turn of a call among those of its key. Raises: Overloaded."""
        place = self._places.get(call)
        if place is None or place.is_taken.is_set():
            return
        try:
            async with asyncio.timeout(self.limits.max_transfer_s if place.stream is None else None):
                await place.is_taken.wait()
        except TimeoutError as error:
            problem = "the requests of the key's streams have taken all of its calls for too long"
            raise _overloaded("max_calls of the key", problem) from error

    def _make_room(self) -> None:
        """Gives the calls that are receiving only a short time more."""
        soon_s = asyncio.get_running_loop().time() + _HURRY_S
        for timeout in self._timeouts:
            if not timeout.expired():  # it may have passed a moment ago, and its call not have learned of it yet
                timeout.reschedule(min(timeout.when() or soon_s, soon_s))

    def hold(self, call: Call, size: int) -> None:
        """Reserves bytes in flight; the reply's size replaces the request's. Raises: Overloaded."""
        others, limit = sum(self._bytes.values()) - self._bytes[call], self.limits.max_bytes_in_flight
        if others and others + size > limit and size > SMALL_MESSAGE:
            raise _overloaded("max_bytes_in_flight", f"{others} bytes in flight + {size} exceed the limit of {limit}")
        self._bytes[call] = size

    def expect_read(self, call: Call, size: int) -> None:
        """Counts the bytes of an answer until the client has read it, for which it has a time. Raises: Overloaded."""
        self.hold(call, size)
        later = asyncio.get_running_loop().call_later
        self._timers[call] = later(self.limits.max_transfer_s, self._end_unread, call)

    def _leave(self, call: Call) -> None:
        del self._bytes[call]
        if place := self._places.pop(call, None):
            place.leave()
        if timer := self._timers.pop(call, None):
            timer.cancel()
        self._note_idle()

    def _end_unread(self, call: Call) -> None:
        """Ends a connection once, although several of its answers may be late together."""
        for other, timer in self._timers.items():
            if other.peer == call.peer:
                timer.cancel()
        log.warning("%s did not read an answer within %g s: its connection ends", call.peer, self.limits.max_transfer_s)
        call.hang_up()


def _overloaded(limit: str, problem: str) -> Overloaded:
    """The error of a call that exceeds the limit of this name."""
    return Overloaded(f"{problem}; retry in 1 s", 1.0, {"exceeded": limit})
