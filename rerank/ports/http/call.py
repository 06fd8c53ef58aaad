"""An HTTP request as a call of the service: its headers, its body, and its end if the client hangs up."""

from __future__ import annotations

import asyncio
import codecs
import json
import math
import re
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from http import HTTPStatus
from typing import Any

from pydantic import TypeAdapter, ValidationError
from starlette.types import Receive, Scope

from rerank.errors import InvalidRequest
from rerank.ports.connections import end_connection_of
from rerank.ports.http.problem import RefusedByHttp
from rerank.service.call import request_id_of
from rerank.service.limits import SMALL_MESSAGE
from rerank.util.json_values import has_more_values
from rerank.util.validation import plain_words

_OBJECT = TypeAdapter(dict[str, Any])
#: Largest number of values (texts, keys, numbers, lists, objects) in a body for each candidate.
_VALUES_PER_CANDIDATE = 32
#: Largest number of values in a body for the options.
_VALUES_OF_OPTIONS = 1000
_UTF_8 = "utf-8"
#: Part of pydantic's error about half of a surrogate pair, that is half of a character such as an emoji.
_HALF = ("surrogate", "hex escape")
#: The content type of a request.
CONTENT_TYPE = "application/json"
#: Charsets that a content type may name, and Python's names of them.
_CHARSETS = {
    "utf-8": "utf-8",
    "utf8": "utf-8",
    "us-ascii": "ascii",
    "iso-8859-1": "latin-1",
    "latin-1": "latin-1",
    "latin1": "latin-1",
    "windows-1252": "cp1252",
    "utf-16": "utf-16",
    "utf-16le": "utf-16-le",
    "utf-16be": "utf-16-be",
}
#: Headers that programs send a key in, apart from Authorization.
_KEY_HEADERS = ("api-key", "x-api-key")
#: Header with the time until the deadline, in milliseconds.
TIMEOUT_HEADER = "x-request-timeout-ms"
_MILLISECONDS = re.compile(r"[1-9][0-9]*")


class HungUp(asyncio.CancelledError):
    """The client has hung up, which cancels its call."""


class HttpCall:
    """A request, see `rerank.service.call.PortCall`.

    Args:
        scope: the ASGI scope of the request.
        receive: the ASGI function that receives the body.
        max_bytes: largest size of the body, in bytes.
    """

    def __init__(self, scope: Scope, receive: Receive, max_bytes: int = 0) -> None:
        host, port = scope.get("client") or ("unknown", 0)
        #: The client in the form of gRPC's peers, such as "http:127.0.0.1:40000" or "http:[::1]:40000".
        self.peer = f"http:[{host}]:{port}" if ":" in host else f"http:{host}:{port}"
        self._port: int = scope["server"][1]
        self._headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        #: The first value of each header.
        self._first = dict(reversed(self._headers))
        self.request_id = request_id_of(self._headers)
        #: The charset of the body, which `read` takes from the headers.
        self.charset = _UTF_8
        self.deadline_s = math.inf
        self._arrived_s = asyncio.get_running_loop().time()
        self._receive = receive
        self._max_bytes = max_bytes

    async def read(self, slot: AbstractAsyncContextManager[None]) -> bytearray:
        """Receives the body. It is not copied, as 16 MB would take some ms of the event loop.

        Args:
            slot: context that is entered before the rest of a large body is received; small bodies never wait.

        Raises:
            HungUp: the client has hung up.
            RefusedByHttp: the headers name another form than JSON, or the body is too large.
            InvalidRequest: the header X-Request-Timeout-Ms is not a number of milliseconds.
        """
        self._check_headers()
        body = bytearray()
        async with AsyncExitStack() as slots:
            is_small = True
            while True:
                if is_small and len(body) > SMALL_MESSAGE:
                    await slots.enter_async_context(slot)
                    is_small = False
                message = await self._receive()
                if message["type"] == "http.disconnect":
                    raise HungUp
                body += message.get("body", b"")
                if len(body) > self._max_bytes:
                    raise self._too_large(f"{len(body)} or more")
                if not message.get("more_body", False):
                    return body

    @asynccontextmanager
    async def until_hung_up(self) -> AsyncIterator[None]:
        """Ends the block when the client hangs up. Used after `read`. Raises: HungUp."""
        block = asyncio.timeout(None)
        watching = asyncio.create_task(self._end_when_hung_up(block))
        try:
            async with block:
                yield
        except TimeoutError as error:
            if not block.expired():
                raise
            raise HungUp from error
        finally:
            watching.cancel()

    async def _end_when_hung_up(self, block: asyncio.Timeout) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        block.reschedule(0)

    @property
    def authorization(self) -> str | None:
        """The key as gRPC's clients send it, "Bearer KEY", from any of the headers; None unless there is one key."""
        given = [value for name, value in self._headers if name == "authorization"]
        given = given or [self._first[name] for name in _KEY_HEADERS if name in self._first][:1]
        if len(given) != 1:
            return None
        return given[0] if " " in given[0] else f"Bearer {given[0]}"

    def hang_up(self) -> None:
        """Ends the client's connection."""
        end_connection_of(self._port, self.peer)

    def _check_headers(self) -> None:
        """Reads the deadline. Refuses a body that is not JSON, or too large, before it is received."""
        self.deadline_s = self._arrived_s + _timeout_s(self._first.get(TIMEOUT_HEADER))
        given = self._first.get("content-type", "")
        content_type, *parameters = given.lower().replace('"', "").split(";")
        if content_type.strip() != CONTENT_TYPE:
            raise _unsupported(f"the content type is {given[:100]!r}; send {CONTENT_TYPE}")
        for parameter in parameters:
            name, _, value = parameter.strip().partition("=")
            if name == "charset":
                if value not in _CHARSETS:
                    raise _unsupported(f"the charset is {value[:100]!r}; send one of {', '.join(_CHARSETS)}")
                self.charset = _CHARSETS[value]
        encoding = self._first.get("content-encoding", "identity")
        if encoding.lower() != "identity":
            raise _unsupported(f"the content encoding is {encoding!r}; send the body without compression")
        length = self._first.get("content-length", "0")
        if length.isdecimal() and int(length) > self._max_bytes:
            raise self._too_large(length)

    def _too_large(self, size: str) -> RefusedByHttp:
        message = f"the request is {size} bytes long, more than the limit of {self._max_bytes}; send fewer passages"
        return RefusedByHttp(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message)


def _unsupported(message: str) -> RefusedByHttp:
    return RefusedByHttp(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, message)


def _timeout_s(header: str | None) -> float:
    if header is None:
        return math.inf
    if not _MILLISECONDS.fullmatch(header):
        raise InvalidRequest("X-Request-Timeout-Ms", f"{header[:50]!r} is not a number of milliseconds from 1")
    return float(header) / 1000  # infinite for hundreds of digits, as without the header


def json_object(
    body: bytes | bytearray, max_candidates: int, charset: str = _UTF_8
) -> tuple[dict[str, Any], list[str]]:
    """Returns the JSON object of a body, and warnings for the caller.

    Raises:
        InvalidRequest: the body is not a JSON object in this charset, or has many more values than `max_candidates`
            candidates need.
    """
    text = _in_utf_8(body, charset)
    limit = max_candidates * _VALUES_PER_CANDIDATE + _VALUES_OF_OPTIONS
    if len(text) > limit and has_more_values(text, limit):  # a value has at least a byte
        raise InvalidRequest(
            "body",
            f"it has more than {limit} values, which are allowed for {max_candidates} candidates, or too long numbers; "
            f"send at most {max_candidates} candidates, and only the fields of them that are needed",
            {"limit": str(limit)},
        )
    try:
        return _OBJECT.validate_json(text), []
    except ValidationError as error:
        problem = plain_words(error.errors(include_url=False, include_input=False, include_context=False)[0]["msg"])
        if not text.strip():
            problem = "it is empty"
        if any(sign in problem for sign in _HALF) and (repaired := _without_halves(text)) is not None:
            return repaired, ["half of a surrogate pair, which is not a character, was read as U+FFFD"]
        try:
            text.decode(_UTF_8)
        except UnicodeDecodeError as wrong:
            problem = f"byte {wrong.start} is 0x{text[wrong.start]:02x}, which is not UTF-8"
        raise InvalidRequest("body", f"{problem}; send a JSON object in UTF-8") from error


def _in_utf_8(body: bytes | bytearray, charset: str) -> bytes | bytearray:
    """The body in UTF-8, without a byte order mark. Raises: InvalidRequest if it is not in this charset."""
    if charset != _UTF_8:
        try:
            body = body.decode(charset).removeprefix("\ufeff").encode(_UTF_8)
        except UnicodeError as error:
            raise InvalidRequest("body", f"it is not in {charset}, which its content type names: {error}") from error
    return body[len(codecs.BOM_UTF8) :] if body.startswith(codecs.BOM_UTF8) else body


def _without_halves(text: bytes | bytearray) -> dict[str, Any] | None:
    """The JSON object with U+FFFD instead of each half of a surrogate pair; None if it has other faults, too."""
    try:
        whole = json.dumps(json.loads(text), ensure_ascii=False)
        return _OBJECT.validate_json(whole.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace"))
    except (ValueError, RecursionError):
        return None
