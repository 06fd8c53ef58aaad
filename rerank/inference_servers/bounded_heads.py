"""Bounds the headers that an inference server may answer with.

The head of an answer is its headers and the informational answers before it ("100 Continue", "103 Early Hints"). The
HTTP library reads any number of those, and each takes some 25 µs of the event loop.
"""

from __future__ import annotations

from typing import Any

import httpcore2
import httpx2

#: The most bytes and lines of a head. A server that sets 200 cookies sends some 20 kB in 200 lines.
_MAX_BYTES, _MAX_LINES = 64 * 1024, 512
#: Bytes of a head that are read at once; the event loop does something else in between.
_PIECE = 4096


class HeadTooLong(Exception):
    """The head of an answer exceeds the limits."""


def bound_heads(client: httpx2.AsyncClient) -> None:
    """Bounds the heads of all answers to a client that has sent nothing yet; the library has no setting for it."""
    for transport in (client._transport, *client._mounts.values()):
        if isinstance(transport, httpx2.AsyncHTTPTransport):  # those of proxies are there only if there is a proxy
            transport._pool._network_backend = _BoundedBackend(transport._pool._network_backend)


def end_of_head(response: httpx2.Response) -> None:
    """Lets the body of a response be read, which is not part of its head."""
    response.extensions["network_stream"].is_in_head = False


class _BoundedBackend(httpcore2.AsyncNetworkBackend):
    """Opens connections with bounded heads over another backend."""

    def __init__(self, backend: httpcore2.AsyncNetworkBackend) -> None:
        self._backend = backend

    async def connect_tcp(self, *args: Any, **options: Any) -> _BoundedStream:
        return _BoundedStream(await self._backend.connect_tcp(*args, **options))

    async def sleep(self, seconds: float) -> None:
        await self._backend.sleep(seconds)


class _BoundedStream(httpcore2.AsyncNetworkStream):
    """A connection with bounded heads: what it is sent begins a request, whose answer begins with a head."""

    def __init__(self, stream: httpcore2.AsyncNetworkStream) -> None:
        self._stream = stream
        self.is_in_head = True
        self._bytes = self._lines = 0

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109  # as in the base class
        """Raises: HeadTooLong."""
        if not self.is_in_head:
            return await self._stream.read(max_bytes, timeout)
        if self._bytes >= _MAX_BYTES or self._lines >= _MAX_LINES:
            raise HeadTooLong(f"more than {_MAX_BYTES} bytes or {_MAX_LINES} lines of headers")
        piece = await self._stream.read(min(max_bytes, _PIECE), timeout)
        self._bytes += len(piece)
        self._lines += piece.count(b"\n")
        return piece

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        self.is_in_head, self._bytes, self._lines = True, 0, 0
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(self, *args: Any, **options: Any) -> _BoundedStream:
        return _BoundedStream(await self._stream.start_tls(*args, **options))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
