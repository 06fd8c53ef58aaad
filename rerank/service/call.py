"""A call, whatever port it arrives at, and the record of what became of it."""

from __future__ import annotations

import math
import re
import reprlib
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from rerank.access.callers import STRANGER, Caller
from rerank.errors import grpc_status_of, reason_of
from rerank.service.requests import RerankRequest, SearchRequest
from rerank.types import Ranking

if TYPE_CHECKING:
    from rerank.reranking.reranker import SearchResult  # imports torch, which MCP needs only if it loads models

#: Header of a call that names it in logs: taken from the caller or made here, and returned with the answer.
REQUEST_ID = "x-request-id"
_VALID_REQUEST_ID = re.compile(r"[!-~]{1,128}")


class Call(Protocol):
    """A call as its port knows it."""

    @property
    def peer(self) -> str:
        """The client's connection, such as "ipv4:127.0.0.1:40000"."""
        ...

    @property
    def headers(self) -> Sequence[tuple[str, str | bytes]]:
        """Names in lower case, and values; gRPC calls them metadata."""
        ...

    @property
    def deadline_s(self) -> float:
        """The client's deadline on the event loop's clock, known once the message is read; infinity if it set none."""
        ...

    async def read(self, place: AbstractAsyncContextManager[None]) -> bytes | bytearray:
        """Reads the message. Raises: RerankError if it is refused, CancelledError if the client hangs up.

        Args:
            place: waits for a place among the messages that are received; a large message needs one.
        """
        ...

    def on_done(self, function: Callable[[], object]) -> None:
        """Registers what to call when the client has the answer, or the call has ended in another way."""
        ...

    def hang_up(self) -> None:
        """Ends the connection of a client that does not read its answer."""
        ...


class EndedByPort:
    """The end of a call that its port has to announce; gRPC announces the end of its own calls."""

    def __init__(self) -> None:
        self._on_done: list[Callable[[], object]] = []

    def on_done(self, function: Callable[[], object]) -> None:
        """Registers what to call when the call has ended."""
        self._on_done.append(function)

    def finish(self) -> None:
        """Calls what `on_done` has registered, and forgets it, as it refers to this object."""
        while self._on_done:
            self._on_done.pop()()


@dataclass(frozen=True, slots=True)
class CallContext:
    """The caller, connection and deadline of a call, which a method gets beside the request.

    Attributes:
        caller: the holder of the call's API key.
        peer: the client's connection.
        deadline_s: the client's, on the event loop's clock; infinity if it set none.
    """

    caller: Caller
    peer: str
    deadline_s: float = math.inf


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a call, as its port sends it.

    Attributes:
        body: the message.
        result: what it tells of; None for a call that ranks nothing, and for an error.
        error: the exception that ended the call.
    """

    body: bytes = b""
    result: Ranking | SearchResult | None = None
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class ReadCall:
    """A call whose message was read.

    Attributes:
        request: None for a call that ranks nothing.
        run: answers the request. Raises: RerankError.
    """

    request: RerankRequest | SearchRequest | None
    run: Callable[[CallContext], Awaitable[Reply]]


@dataclass(frozen=True, slots=True)
class CallRecord:
    """A call that has ended; str() is its line in the log, without any text of the request.

    Attributes:
        method: name of the method.
        request_id: the caller's id of the request, or a new one.
        peer: the client's connection.
        seconds: from the arrival of the call to its answer.
        caller: the holder of the call's API key; STRANGER if it ended before the key was checked.
        request: None if the call ended before its request was read, and for a call that ranks nothing.
        reply: None if the client hung up before.
    """

    method: str
    request_id: str
    peer: str
    seconds: float
    caller: Caller = STRANGER
    request: RerankRequest | SearchRequest | None = None
    reply: Reply | None = None

    @property
    def error(self) -> Exception | None:
        """The exception that ended the call."""
        return None if self.reply is None else self.reply.error

    @property
    def status(self) -> str:
        """The name of the gRPC status."""
        if self.reply is None:
            return "CANCELLED"
        return "OK" if self.reply.error is None else grpc_status_of(type(self.reply.error))

    @property
    def ranking(self) -> Ranking | None:
        """The ranking that answered the call."""
        result = None if self.reply is None else self.reply.result
        return result if isinstance(result, Ranking | None) else result.ranking

    @property
    def search(self) -> SearchResult | None:
        result = None if self.reply is None else self.reply.result
        return None if isinstance(result, Ranking) else result

    @property
    def key(self) -> str:
        """The name of the caller's API key; empty without one."""
        return self.caller.name

    @property
    def model(self) -> str | None:
        """The model that ran, or else that the request names; None for a call that ranks nothing."""
        if self.ranking is not None:
            return self.ranking.trace.model
        return None if self.request is None else self.request.options.model

    @property
    def candidates(self) -> int:
        """The number of candidates in the request, or of passages that the search found."""
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


#: Observes a call that has ended, for the log, the metrics and the traces.
OnEnd: TypeAlias = Callable[[CallRecord], None]


def header(call: Call, name: str) -> str | None:
    """The only value of a header; None if the call has none, or several."""
    values = [value for given, value in call.headers if given == name]
    return str(values[0]) if len(values) == 1 else None


def request_id_of(call: Call) -> str:
    """The caller's id of the request, or a new one if the caller sent none that fits into a line of a log."""
    given = header(call, REQUEST_ID) or ""
    return given if _VALID_REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
