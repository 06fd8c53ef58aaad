"""Streams of requests. Each request is a call of its own, and a bounded number of a stream's requests is in work."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TypeAlias

from rerank.errors import Overloaded, RerankError, ShuttingDown
from rerank.service.answer import Method, answer
from rerank.service.call import REQUEST_ID, Call, CallRecord, EndedByPort
from rerank.service.in_flight import CallsInFlight
from rerank.util.many import IN_WORK

#: Streams that may be open at the same time, in all and with one key. Each may be receiving a message, and the
#: bytes in flight know only when it is complete.
_STREAMS, _STREAMS_OF_KEY = 32, 8
#: Seconds after which a stream with no request in work is silent: it ends if another one would be too many.
_SILENT_S = 1.0
#: A stream is read further while its messages hold at most this part of the bytes in flight.
_SHARE_OF_BYTES = 1 / 4

#: Requests that are in work before the first one is answered. Each answer admits one more, because until the engine has
#: measured its speed, it could take more than it can answer in time.
_AT_FIRST = 4

#: Reads the next message of a stream; None at its end.
Read: TypeAlias = Callable[[], Awaitable[bytes | None]]
#: Sends the answer to the request of this number; returns when it has left.
Write: TypeAlias = Callable[[int, CallRecord], Awaitable[None]]


@dataclass(eq=False)
class OpenStream:
    """A stream that is counted as open.

    Attributes:
        key: the name of the caller's key; empty without keys.
        max_in_work: the most of its requests that may be in work.
        silent_since_s: the time since which it has waited for a message with no request in work, on the event loop's
            clock; infinity otherwise.
        has_to_end: set when the stream gives way to another one because it is silent.
    """

    key: str
    max_in_work: int
    silent_since_s: float = math.inf
    has_to_end: asyncio.Event = field(default_factory=asyncio.Event)


class OpenStreams:
    """Bounds the streams that are open. A stream is no call in flight: its requests are."""

    def __init__(self, calls: CallsInFlight) -> None:
        self._calls = calls
        self._open: set[OpenStream] = set()

    @contextmanager
    def open(self, call: Call) -> Iterator[OpenStream]:
        """Counts a stream as open in the block.

        Raises: Unauthenticated, ShuttingDown, Overloaded.
        """
        caller = self._calls.authenticate(call)
        if self._calls.is_shutting_down:
            raise ShuttingDown("the service is shutting down; open the stream at another replica")
        if caller.name:
            self._end_silent([each for each in self._open if each.key == caller.name], _STREAMS_OF_KEY)
        self._end_silent(list(self._open), _STREAMS)
        stream = OpenStream(caller.name, min(caller.limits.max_calls or IN_WORK, IN_WORK))
        self._open.add(stream)
        try:
            yield stream
        finally:
            self._open.discard(stream)

    def _end_silent(self, streams: Sequence[OpenStream], limit: int) -> None:
        """Ends the stream that was silent for longest if there are too many. Raises: Overloaded if none is silent."""
        if len(streams) < limit:
            return
        longest = min(streams, key=lambda each: each.silent_since_s)
        if longest.silent_since_s > asyncio.get_running_loop().time() - _SILENT_S:
            problem = f"{len(streams)} streams are open, the most that may be of a caller or in all; retry in 1 s"
            raise Overloaded(problem, 1.0, {"exceeded": "streams", "limit": str(limit)})
        longest.has_to_end.set()
        self._open.discard(longest)


class _StreamedCall(EndedByPort):
    """A request of a stream, see `rerank.service.call.Call`. Its id is that of the stream with its number."""

    def __init__(self, stream: Call, number: int, message: bytes) -> None:
        super().__init__()
        self.peer, self.deadline_s, self.size = stream.peer, stream.deadline_s, len(message)
        self.headers = [
            (name, f"{value!s}/{number}" if name == REQUEST_ID else value) for name, value in stream.headers
        ]
        #: Set when the message is counted among the bytes in flight, or will not be.
        self.taken = asyncio.Event()
        self._stream, self._message = stream, message

    async def read(self) -> bytes:
        message, self._message = self._message, b""
        self.taken.set()
        return message

    def hang_up(self) -> None:
        self._stream.hang_up()

    def finish(self) -> None:
        self.taken.set()
        super().finish()


class RequestStream:
    """Answers the requests of a stream as they come, and reads no further while enough of them are in work.

    A request is in work until its answer has left, so that a client that does not read its answers is not read either.

    Args:
        stream: the call that brings them.
        method: answers one of them.
        write: sends an answer; called for one at a time.
        opened: the stream as `OpenStreams` counts it.
    """

    def __init__(self, stream: Call, method: Method, write: Write, opened: OpenStream) -> None:
        self._stream, self._write, self._opened = stream, write, opened
        self._calls, respond = method.calls, method.respond

        async def paced(message: bytes | bytearray, record: CallRecord) -> bytes:
            async def attempt() -> bytes:
                record.deadline_s = stream.deadline_s  # a time of the request's own begins with each attempt
                return await respond(message, record)

            return await record.caller.pace.run(attempt, stream.deadline_s)

        self._method = replace(method, respond=paced)
        self._writing = asyncio.Lock()
        self._in_work: set[_StreamedCall] = set()
        self._answered = 0
        self._ended = asyncio.Event()
        self._is_reading = False
        self._quiet_since_s = asyncio.get_running_loop().time()

    async def answer_all(self, read: Read) -> None:
        """Answers every request of the stream.

        Raises:
            Overloaded: the stream was silent for too long, with no request in work, or gave way to another one.
            RerankError: the stream cannot be read.
        """
        problem: RerankError | None = None
        async with asyncio.TaskGroup() as tasks:
            try:
                for number in count():
                    await self._wait_until_readable()
                    if (message := await self._next(read)) is None:
                        break
                    call = _StreamedCall(self._stream, number, message)
                    self._in_work.add(call)
                    tasks.create_task(self._answer(call, number))
                    del message
                    await call.taken.wait()
            except RerankError as error:  # raised here, it would cancel those in work
                problem = error
        if problem is not None:
            raise problem

    async def _answer(self, call: _StreamedCall, number: int) -> None:
        try:
            record = await answer(call, self._method, stream=self)
            async with self._writing:
                await self._write(number, record)
        finally:
            call.finish()
            self._in_work.discard(call)
            self._answered += 1
            self._quiet_since_s = asyncio.get_running_loop().time()
            self._note_silence()
            self._ended.set()

    async def _wait_until_readable(self) -> None:
        while not self._may_be_read():
            self._ended.clear()
            await self._ended.wait()

    def _may_be_read(self) -> bool:
        size, limit = sum(call.size for call in self._in_work), self._calls.limits.max_bytes_in_flight
        return (
            len(self._in_work) < min(self._opened.max_in_work, _AT_FIRST + self._answered)
            and size <= _SHARE_OF_BYTES * limit
        )

    def _note_silence(self) -> None:
        self._opened.silent_since_s = self._quiet_since_s if self._is_reading and not self._in_work else math.inf

    async def _next(self, read: Read) -> bytes | None:
        """The next message; None at the end. Raises: Overloaded if the stream is silent for too long."""
        reading, limit_s = asyncio.ensure_future(read()), self._calls.limits.max_transfer_s
        giving_way = asyncio.ensure_future(self._opened.has_to_end.wait())
        self._is_reading = True
        self._note_silence()
        try:
            while not reading.done():
                left_s = self._quiet_since_s + limit_s - asyncio.get_running_loop().time()
                if (left_s <= 0 and not self._in_work) or giving_way.done():
                    waited = "another stream takes its place" if giving_way.done() else f"{limit_s:g} s are over"
                    problem = f"no request arrived, none is in work, and {waited}; open the stream again"
                    exceeded = "streams" if giving_way.done() else "max_transfer_s"
                    raise Overloaded(problem, 1.0, {"exceeded": exceeded})
                timeout_s = limit_s if self._in_work else left_s
                await asyncio.wait({reading, giving_way}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            self._quiet_since_s = asyncio.get_running_loop().time()
            return reading.result()
        finally:
            self._is_reading = False
            self._note_silence()
            reading.cancel()
            giving_way.cancel()
