"""An HTTP request with the methods of a gRPC context, so that both are counted and served by the same code."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope

from rerank.errors import InvalidRequest
from rerank.http.problem import RefusedByHttp

TIMEOUT_HEADER = "x-request-timeout-ms"
_MAX_TIMEOUT_MS = 2**31
_MILLISECONDS = re.compile(r"[1-9][0-9]{0,9}")


class HttpCall:
    """A POST request. `CallsInFlight` and `RerankServicer` use it in the place of a gRPC context.

    Args:
        scope: the ASGI scope of the request.
        receive: the ASGI function that receives the body.
        max_bytes: limit on the size of the body.
    """

    #: The beginning of `peer`.
    PEER = "http:"

    def __init__(self, scope: Scope, receive: Receive, max_bytes: int) -> None:
        self.headers = Headers(scope=scope)
        self._client = scope.get("client") or ("unknown", 0)
        self._receive = receive
        self._max_bytes = max_bytes
        self._deadline = math.inf
        self._callbacks: list[Callable[[HttpCall], object]] = []

    @property
    def as_context(self) -> Any:
        """This object in the place of a gRPC context, of which it has what is used."""
        return self

    def check_headers(self) -> None:
        """Reads the deadline and refuses bodies that are no JSON or too large, before they are received.

        Raises:
            RefusedByHttp: the content type, its charset, the content encoding or the length is not accepted.
            InvalidRequest: the header X-Request-Timeout-Ms is no number of milliseconds.
        """
        self._deadline = asyncio.get_running_loop().time() + _timeout_s(self.headers.get(TIMEOUT_HEADER))
        content_type, _, parameters = self.headers.get("content-type", "").partition(";")
        charset = parameters.replace('"', "").strip().lower()
        if content_type.strip().lower() != "application/json" or charset not in ("", "charset=utf-8"):
            raise _unsupported(f"the content type is {self.headers.get('content-type', '')!r}; send application/json")
        encoding = self.headers.get("content-encoding", "identity")
        if encoding.lower() != "identity":
            raise _unsupported(f"the content encoding is {encoding!r}; send the body without compression")
        length = self.headers.get("content-length", "0")
        if length.isdecimal() and int(length) > self._max_bytes:
            raise self._too_large(length)

    def peer(self) -> str:
        """The client's address in the form of gRPC's, such as "http:127.0.0.1:40000" or "http:[::1]:40000"."""
        host, port = self._client
        return f"{self.PEER}[{host}]:{port}" if ":" in host else f"{self.PEER}{host}:{port}"

    def invocation_metadata(self) -> list[tuple[str, str]]:
        """The headers, by names in lower case."""
        return self.headers.items()

    def time_remaining(self) -> float:
        """Seconds until the client's deadline; infinity if it set none."""
        return self._deadline - asyncio.get_running_loop().time()

    async def read(self) -> bytearray:
        """The body, as it was received: a copy of 16 MB would take some ms of the event loop.

        Raises:
            ClientDisconnect: the client has hung up.
            RefusedByHttp: the body is too large.
        """
        body = bytearray()
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            body += message.get("body", b"")
            if len(body) > self._max_bytes:
                raise self._too_large(f"{len(body)} or more")
            if not message.get("more_body", False):
                return body

    async def disconnected(self) -> None:
        """Waits until the client hangs up. To be called after `read`."""
        message: Message = {"type": "http.request"}
        while message["type"] != "http.disconnect":
            message = await self._receive()

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """Registers a function that is called with this object when the request was answered or given up."""
        self._callbacks.append(callback)

    def finish(self) -> None:
        """Calls the done callbacks."""
        for callback in self._callbacks:
            callback(self)

    def _too_large(self, size: str) -> RefusedByHttp:
        message = f"the request is {size} bytes long, more than the limit of {self._max_bytes}; send fewer passages"
        return RefusedByHttp(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message)


def _unsupported(message: str) -> RefusedByHttp:
    return RefusedByHttp(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, message)


def _timeout_s(header: str | None) -> float:
    if header is None:
        return math.inf
    if not (_MILLISECONDS.fullmatch(header) and int(header) <= _MAX_TIMEOUT_MS):
        problem = f"{header[:50]!r} is not a number of milliseconds from 1 to {_MAX_TIMEOUT_MS}"
        raise InvalidRequest("X-Request-Timeout-Ms", problem)
    return int(header) / 1000
