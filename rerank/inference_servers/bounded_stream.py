"""Connections to servers that are read in small pieces, and not beyond the size of an answer.

The HTTP library reads 64 KiB at once and parses all of it before anything else runs on the event loop: 2,600 times
"100 Continue" take a tenth of a second.
"""

from __future__ import annotations

from typing import Any, cast

import httpcore2
import httpx2

#: Largest number of bytes before the body of an answer: interim answers, status and headers.
_HEAD_BYTES = 64 * 1024
#: They are read in pieces of this size.
_PIECE_BYTES = 4096


class TooMuch(Exception):
    """A server has sent more bytes than its answer may have."""


class BoundedStream(httpcore2.AsyncNetworkStream):
    """A connection that bounds the bytes before the body of an answer, and reads them in small pieces.

    Each write to the connection begins another answer.

    Args:
        stream: the connection.
    """

    def __init__(self, stream: httpcore2.AsyncNetworkStream) -> None:
        self._stream = stream
        self._left, self._piece = _HEAD_BYTES, _PIECE_BYTES

    def begin_body(self, most_bytes: int) -> None:
        """Allows a body of at most this size to be read. The framing of chunks counts, too."""
        self._left, self._piece = most_bytes, _HEAD_BYTES

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        """See AsyncNetworkStream. Raises: TooMuch."""
        content = await self._stream.read(min(max_bytes, self._piece), timeout)
        self._left -= len(content)
        if self._left < 0:
            raise TooMuch
        return content

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        self._left, self._piece = _HEAD_BYTES, _PIECE_BYTES
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(self, *args: Any, **options: Any) -> httpcore2.AsyncNetworkStream:
        return BoundedStream(await self._stream.start_tls(*args, **options))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class _BoundedBackend(httpcore2.AsyncNetworkBackend):
    """Opens connections that are BoundedStreams."""

    def __init__(self, backend: httpcore2.AsyncNetworkBackend) -> None:
        self._backend = backend

    async def connect_tcp(self, *args: Any, **options: Any) -> httpcore2.AsyncNetworkStream:
        return BoundedStream(await self._backend.connect_tcp(*args, **options))

    async def sleep(self, seconds: float) -> None:
        await self._backend.sleep(seconds)


def bound_connections(client: httpx2.AsyncClient) -> None:
    """Makes a client open BoundedStreams only, also to proxies."""
    for transport in (client._transport, *client._mounts.values()):
        if transport is not None:
            pool = cast(Any, transport)._pool
            pool._network_backend = _BoundedBackend(pool._network_backend)
