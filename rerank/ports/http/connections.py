"""Connections of an HTTP port: bounds on their number, on slow requests and on small chunks (uvicorn's protocol).

At the bound, a new connection replaces the one that has been idle (waits for a request) for longest.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from rerank.ports.connections import refusal_reason
from rerank.telemetry.logs import RateLimitedLog

#: Largest number of connections that wait in the system's queue until asyncio accepts them.
_QUEUE = 2048
#: Number of chunks that a body of any size may have.
_FREE_CHUNKS = 256
#: Number of bytes for which a body may have one more chunk.
_BYTES_PER_CHUNK = 256
#: Largest size of the headers of a request, in bytes.
_MAX_HEADER_BYTES = 64 * 1024
#: Versions of HTTP that requests may have.
_VERSIONS = (b"1.0", b"1.1")

#: Message → the body of the answer to bytes that are not HTTP.
BadRequest: TypeAlias = Callable[[str], bytes]


class BoundedListener(socket.socket):
    """A listening socket whose `accept` keeps the number of connections within a bound.

    A connection is idle until `begin_request`, and again after `expect_request`.

    Args:
        family, kind, protocol: see `socket.socket`.
        max_connections: largest number of connections at the same time.
    """

    def __init__(self, family: int, kind: int, protocol: int, max_connections: int) -> None:
        super().__init__(family, kind, protocol)
        self._max_connections = max_connections
        #: File descriptor → connection.
        self._open: dict[int, _TrackedSocket] = {}
        #: File descriptors of the idle connections; the one that is idle for longest is first.
        self._idle: dict[int, None] = {}
        #: Closed to have a file descriptor for a connection that is refused because the process has none left.
        self._spare = open(os.devnull)  # noqa: SIM115
        self._refusals = RateLimitedLog("HTTP port: {} connections were refused or ended")

    def listen(self, backlog: int = 0) -> None:
        """Listens. The queue is longer than `backlog`, which says how many connections asyncio accepts at a time."""
        super().listen(max(backlog, _QUEUE))

    def accept(self) -> tuple[socket.socket, Any]:
        """Accepts the next connection; returns it with the address of its client.

        Raises:
            ConnectionAbortedError: the port is full, and no connection is idle; or the process has no file descriptor
                left. For asyncio, this exception means that the client gave up.
        """
        try:
            connection, address = super().accept()
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            self._refuse_without_file()
            raise ConnectionAbortedError(str(error)) from error
        if len(self._open) >= self._max_connections:
            self._end_idle_connection(connection)
        accepted = _TrackedSocket(connection, self)
        self._open[accepted.fileno()] = accepted
        self.expect_request(accepted.fileno())
        return accepted, address

    def begin_request(self, file: int) -> None:
        """Counts the connection with this file descriptor as busy: a request has arrived."""
        self._idle.pop(file, None)

    def expect_request(self, file: int) -> None:
        """Counts the connection with this file descriptor as idle: it waits for its next request."""
        self.begin_request(file)
        if file in self._open:
            self._idle[file] = None

    def leave(self, file: int) -> None:
        """Stops counting the connection with this file descriptor, which closes."""
        self._open.pop(file, None)
        self.begin_request(file)

    def _refuse_without_file(self) -> None:
        """Closes the next connection; otherwise asyncio would try again and again, with a traceback each time."""
        self._refusals.add(1, "the process may open no more files")
        self._spare.close()
        with suppress(OSError):  # other threads may have taken the file
            super().accept()[0].close()
        with suppress(OSError):
            self._spare = open(os.devnull)  # noqa: SIM115

    def close(self) -> None:
        self._spare.close()
        super().close()

    def _end_idle_connection(self, new: socket.socket) -> None:
        """Ends the connection that is idle for longest.

        Raises:
            ConnectionAbortedError: no connection is idle; `new` is closed instead.
        """
        reason = refusal_reason(self._max_connections)
        self._refusals.add(1, reason)
        longest = next(iter(self._idle), None)
        if longest is None:
            new.close()
            raise ConnectionAbortedError(reason)
        ended = self._open[longest]
        self.leave(longest)  # asyncio closes it later, and it would count until then
        with suppress(OSError):  # the client has closed it
            ended.shutdown(socket.SHUT_RDWR)


class _TrackedSocket(socket.socket):
    """A connection that tells its listener when it closes."""

    def __init__(self, accepted: socket.socket, listener: BoundedListener) -> None:
        super().__init__(fileno=accepted.detach())
        self._listener = listener

    def close(self) -> None:
        self._listener.leave(self.fileno())  # before the next connection can get the same file descriptor
        super().close()


class _Connection(h11.Connection):
    """Keeps the problem of a request for the answer, and refuses some requests that h11 accepts.

    Bodies of small chunks are refused, because a chunk takes some 10 µs of the event loop. Requests with both a length
    and chunks are refused, because a proxy may see another end of such a request than this server (RFC 9112, 6.3).
    """

    problem = ""
    _chunks = _bytes = 0

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        try:
            event = super().next_event()
            if isinstance(event, h11.Request):
                self._chunks = self._bytes = 0
                _check(event)
            elif isinstance(event, h11.Data):
                self._chunks += event.chunk_end
                self._bytes += len(event.data)
                if self._chunks - _FREE_CHUNKS > self._bytes / _BYTES_PER_CHUNK:
                    raise h11.RemoteProtocolError(
                        f"the chunks are too small; send a body with its length, or in chunks of {_BYTES_PER_CHUNK} "
                        "bytes or more"
                    )
        except h11.RemoteProtocolError as error:
            self.problem = str(error)
            raise
        return event


def _check(request: h11.Request) -> None:
    names = dict(request.headers).keys()
    if request.http_version not in _VERSIONS:
        raise h11.RemoteProtocolError(f"the version is HTTP/{request.http_version.decode()}; send HTTP/1.1")
    if {b"content-length", b"transfer-encoding"} <= names:
        raise h11.RemoteProtocolError("it has both Content-Length and Transfer-Encoding; send one of them")


class BoundedProtocol(H11Protocol):
    """Limits how long a connection takes to send the headers of its next request.

    Args:
        max_transfer_s: longest time for the headers, in seconds.
        bad_request: message → the body of the answer to bytes that are not HTTP.
        listeners: the listening sockets; the one that accepted the connection counts it as idle or busy.
    """

    conn: _Connection
    _timer: asyncio.TimerHandle | None = None
    _file = -1

    def __init__(
        self,
        max_transfer_s: float,
        bad_request: BadRequest,
        listeners: Sequence[BoundedListener],
        *args: Any,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._max_transfer_s, self._bad_request, self._listeners = max_transfer_s, bad_request, listeners
        self.conn = _Connection(h11.SERVER, _MAX_HEADER_BYTES)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._file = transport.get_extra_info("socket").fileno()
        self._expect_request()

    def handle_events(self) -> None:
        """Reads bytes that have arrived. uvicorn calls it for new data, and after an answer for waiting requests."""
        super().handle_events()
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_timer()
            for listener in self._listeners:
                listener.begin_request(self._file)

    def on_response_complete(self) -> None:
        self._expect_request()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def _expect_request(self) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(self._max_transfer_s, self.transport.abort)
        if not self.transport.is_closing():
            for listener in self._listeners:  # listeners that did not accept it do nothing
                listener.expect_request(self._file)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def send_400_response(self, msg: str) -> None:
        """Answers bytes that are not HTTP. If an answer has begun, closes the connection instead."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._send_problem(f"the bytes are not a request of HTTP/1.1: {self.conn.problem}")
        if self.cycle is not None:  # so that the application writes no second answer
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.close()

    def _send_problem(self, message: str) -> None:
        body = self._bad_request(message)
        headers = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
        response = h11.Response(status_code=400, headers=list(headers.items()))
        for event in (response, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
