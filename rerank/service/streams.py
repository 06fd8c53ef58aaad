"""Streams of requests: each request is a call of its own, and a bounded number of them is in work."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from typing import TypeAlias

from rerank.errors import Overloaded, RerankError, ShuttingDown
from rerank.many import IN_WORK, Pace
from rerank.service.calls import Call, CallRecord, CallsInFlight, Method, answer, header
from rerank.service.status import REQUEST_ID

#: Streams that may be open at the same time, in all and with one key. Each may be receiving a message, of which the
#: bytes in flight know only when it is complete.
_STREAMS, _STREAMS_OF_KEY = 32, 8
#: The part of the bytes in flight that the messages of one stream may have before it is read further.
_SHARE_OF_BYTES = 1 / 4

#: Requests that are in work before the first one is answered. Each answer admits one more: until the engine has
#: measured its speed, it could take more than it can answer in time.
_AT_FIRST = 4

#: Reads the next message of a stream; None at its end.
Read: TypeAlias = Callable[[], Awaitable[bytes | None]]
#: Sends the answer to the request of this number; returns when it has left.
Write: TypeAlias = Callable[[int, CallRecord], Awaitable[None]]


class OpenStreams:
    """Bounds the streams that are open. A stream is no call in flight: its requests are."""

    def __init__(self, calls: CallsInFlight) -> None:
        self._calls = calls
        self._of_key = Counter[str]()

    @contextmanager
    def open(self, stream: Call) -> Iterator[int]:
        """Counts a stream as open in the block; yields how many of its requests may be in work.

        Raises: Unauthenticated, ShuttingDown, Overloaded.
        """
        keys = self._calls.keys
        caller = None if keys is None else keys.authenticate(header(stream, "authorization"))
        name, most = (caller.name, caller.limits.max_calls or IN_WORK) if caller else ("", IN_WORK)
        if self._calls.shutting_down:
            raise ShuttingDown("the service is shutting down; open the stream at another replica")
        total, limit = self._of_key.total(), _STREAMS_OF_KEY if caller else _STREAMS
        if total >= _STREAMS or self._of_key[name] >= limit:
            open_ = f"{total} streams are open, of which {self._of_key[name]} are this caller's"
            problem = f"{open_}; {_STREAMS} may be, and {limit} of a caller; retry in 1 s"
            raise Overloaded(problem, 1.0, {"exceeded": "streams", "limit": str(limit)})
        self._of_key[name] += 1
        try:
            yield min(most, IN_WORK)
        finally:
            self._of_key[name] -= 1


class _StreamedCall:
    """A request of a stream, see `rerank.service.calls.Call`. Its id is that of the stream with its number."""

    def __init__(self, stream: Call, number: int, message: bytes) -> None:
        self.peer, self.deadline, self.size = stream.peer, stream.deadline, len(message)
        self.headers = [
            (name, f"{value!s}/{number}" if name == REQUEST_ID else value) for name, value in stream.headers
        ]
        #: Set when the message is counted among the bytes in flight, or will not be.
        self.taken = asyncio.Event()
        self._message = message
        self._on_done: list[Callable[[], object]] = []

    async def read(self) -> bytes:
        message, self._message = self._message, b""
        self.taken.set()
        return message

    def on_done(self, function: Callable[[], object]) -> None:
        self._on_done.append(function)

    def finish(self) -> None:
        self.taken.set()
        while self._on_done:
            self._on_done.pop()()


class RequestStream:
    """Answers the requests of a stream as they come, and reads no further while enough of them are in work.

    A request is in work until its answer has left, so that a client that does not read its answers is not read either.

    Args:
        stream: the call that brings them.
        method: answers one of them.
        write: sends an answer; called for one at a time.
        most: how many may be in work.
    """

    def __init__(self, stream: Call, method: Method, write: Write, most: int) -> None:
        self._stream, self._write, self._most = stream, write, most
        self._calls, respond, pace = method.calls, method.respond, Pace()

        async def paced(message: bytes | bytearray, record: CallRecord) -> bytes:
            async def attempt() -> bytes:
                record.deadline = stream.deadline  # a time of the request's own begins with each attempt
                return await respond(message, record)

            return await pace.run(attempt, stream.deadline)

        self._method = replace(method, respond=paced)
        self._writing = asyncio.Lock()
        self._in_work: set[_StreamedCall] = set()
        self._answered = 0
        self._ended = asyncio.Event()
        self._quiet_since_s = asyncio.get_running_loop().time()

    async def answer_all(self, read: Read) -> None:
        """Answers every request of the stream.

        Raises:
            Overloaded: the stream was silent for too long, with no request in work.
            RerankError: the stream cannot be read.
        """
        problem: RerankError | None = None
        async with asyncio.TaskGroup() as tasks:
            try:
                for number in count():
                    await self._wait_for_room()
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
            record = await answer(call, self._method)
            async with self._writing:
                await self._write(number, record)
        finally:
            call.finish()
            self._in_work.discard(call)
            self._answered += 1
            self._quiet_since_s = asyncio.get_running_loop().time()
            self._ended.set()

    async def _wait_for_room(self) -> None:
        while not self._has_room():
            self._ended.clear()
            await self._ended.wait()

    def _has_room(self) -> bool:
        size, limit = sum(call.size for call in self._in_work), self._calls.limits.max_bytes_in_flight
        return len(self._in_work) < min(self._most, _AT_FIRST + self._answered) and size <= _SHARE_OF_BYTES * limit

    async def _next(self, read: Read) -> bytes | None:
        """The next message; None at the end. Raises: Overloaded if the stream is silent for too long."""
        reading, limit_s = asyncio.ensure_future(read()), self._calls.limits.max_transfer_s
        try:
            while not reading.done():
                left_s = self._quiet_since_s + limit_s - asyncio.get_running_loop().time()
                if left_s <= 0 and not self._in_work:
                    problem = f"no request arrived within {limit_s:g} s, and none is in work; open the stream again"
                    raise Overloaded(problem, 1.0, {"exceeded": "max_transfer_s"})
                await asyncio.wait({reading}, timeout=limit_s if self._in_work else left_s)
            self._quiet_since_s = asyncio.get_running_loop().time()
            return reading.result()
        finally:
            reading.cancel()
