"""HTTP/1.1 of a connection: uvicorn's, with bounds on slow clients and on what their bytes cost the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from rerank.ports.http.listener import BoundedListener

#: Chunks of a body that may be of any size; the further ones have so many bytes on average.
_FREE_CHUNKS, _BYTES_PER_CHUNK = 256, 256
_MAX_HEADER_BYTES = 64 * 1024


class _Connection(h11.Connection):
    """h11's connection, which refuses bodies in chunks of a few bytes: each takes some 10 µs of the event loop."""

    _chunks = _bytes = 0

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._chunks = self._bytes = 0
        elif isinstance(event, h11.Data):
            self._chunks += event.chunk_end
            self._bytes += len(event.data)
            if self._chunks - _FREE_CHUNKS > self._bytes / _BYTES_PER_CHUNK:
                raise h11.RemoteProtocolError("the chunks are too small")
        return event


def protocol_with(
    max_transfer_s: float, bad_request: Callable[[str], bytes], listener: BoundedListener
) -> type[H11Protocol]:
    """uvicorn's protocol with a limit on the time in which a connection sends the headers of its next request.

    Args:
        max_transfer_s: that time, in seconds.
        bad_request: message → body of the answer to bytes that are no HTTP.
        listener: has accepted the connections, and is told which of them wait for a request.
    """

    class Protocol(H11Protocol):
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
            """Reads what has arrived: called with new data, and after an answer for requests that came before it."""
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
            """Answers bytes that are no HTTP; hangs up if an answer was begun."""
            if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                self._send_problem(f"{msg} Send HTTP/1.1; a body with its length, or in chunks of 256 bytes or more.")
            self.transport.close()

        def _send_problem(self, message: str) -> None:
            body = bad_request(message)
            headers = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
            response = h11.Response(status_code=400, headers=list(headers.items()))
            for event in (response, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")

    return Protocol
