"""HTTP/1.1 on a connection: uvicorn's protocol, with bounds on slow clients and on the cost of small chunks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeAlias

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from rerank.ports.http.listener import BoundedListener

#: This many chunks of a body may be of any size. Further ones must have this many bytes on average.
_FREE_CHUNKS, _BYTES_PER_CHUNK = 256, 256
_MAX_HEADER_BYTES = 64 * 1024
_VERSIONS = (b"1.0", b"1.1")

#: Makes the body of the answer to bytes that are not HTTP, from a message.
BadRequest: TypeAlias = Callable[[str], bytes]


class _Connection(h11.Connection):
    """Notes what is wrong with a request, and refuses more of them than h11.

    A chunk takes some 10 µs of the event loop, so that chunks of a few bytes are refused. A length next to chunks is
    refused, because a proxy may see another end of such a request than we do (RFC 9112, 6.3).
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
    names = {name for name, _ in request.headers}
    if request.http_version not in _VERSIONS:
        raise h11.RemoteProtocolError(f"the version is HTTP/{request.http_version.decode()}; send HTTP/1.1")
    if {b"content-length", b"transfer-encoding"} <= names:
        raise h11.RemoteProtocolError("it has both Content-Length and Transfer-Encoding; send one of them")


def protocol_with(max_transfer_s: float, bad_request: BadRequest, listener: BoundedListener) -> type[H11Protocol]:
    """Makes a protocol that limits how long a connection takes to send the headers of its next request.

    Args:
        max_transfer_s: that limit, in seconds.
        bad_request: makes the body of the answer to bytes that are not HTTP.
        listener: accepted the connections, and is told which of them wait for a request.
    """

    class Protocol(H11Protocol):
        conn: _Connection
        _timer: asyncio.TimerHandle | None = None
        _file = -1

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.conn = _Connection(h11.SERVER, _MAX_HEADER_BYTES)

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._file = transport.get_extra_info("socket").fileno()
            self._expect_request()

        def handle_events(self) -> None:
            """Reads what has arrived. uvicorn calls it for new data, and after an answer, for requests that wait."""
            super().handle_events()
            if self.cycle is not None and not self.cycle.response_complete:
                self._stop_timer()
                listener.begin_request(self._file)

        def on_response_complete(self) -> None:
            self._expect_request()
            super().on_response_complete()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_timer()
            super().connection_lost(exc)

        def _expect_request(self) -> None:
            self._stop_timer()
            self._timer = self.loop.call_later(max_transfer_s, self.transport.abort)
            if not self.transport.is_closing():
                listener.expect_request(self._file)

        def _stop_timer(self) -> None:
            if self._timer is not None:
                self._timer.cancel()

        def send_400_response(self, msg: str) -> None:
            """Answers bytes that are not HTTP. If an answer has begun, it hangs up instead."""
            if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                self._send_problem(f"the bytes are not a request of HTTP/1.1: {self.conn.problem}")
            if self.cycle is not None:  # its application writes no second answer
                self.cycle.disconnected = True
                self.cycle.message_event.set()
            self.transport.close()

        def _send_problem(self, message: str) -> None:
            body = bad_request(message)
            headers = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
            response = h11.Response(status_code=400, headers=list(headers.items()))
            for event in (response, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")

    return Protocol
