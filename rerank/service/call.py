"""A call, whatever port it arrives at, and the record of what became of it."""

from __future__ import annotations

import math
import re
import reprlib
import uuid
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from rerank.access.callers import STRANGER, Caller
from rerank.errors import reason_of
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
class Reply:
    """The answer to a call, as its port sends it.

    Attributes:
        body: the message.
        error: the exception that the message tells of; None if it holds a result.
    """

    body: bytes
    error: Exception | None = None


@dataclass
class CallRecord:
    """A call and what became of it; str() is its line in the log, without any text of the request.

    Attributes:
        method: name of the method.
        request_id: the caller's id of the request, or a new one.
        peer: the client's connection.
        status: name of the gRPC status; CANCELLED until the call is answered, and if the client hangs up before that.
        seconds: from the arrival of the call to its answer.
        caller: the holder of the call's API key; STRANGER until the key was checked.
        deadline_s: the client's, on the event loop's clock; infinity if it set none.
        request: None if the call ended before its request was read, and for a call that ranks nothing.
        ranking: the answer to the request; None unless the call was answered.
        search: the answer to a search, with its first stage.
        reply: the answer; empty if the call ended without one.
        error: the exception that ended the call.
    """

    method: str
    request_id: str
    peer: str
    status: str = "CANCELLED"
    seconds: float = 0.0
    caller: Caller = STRANGER
    deadline_s: float = math.inf
    request: RerankRequest | SearchRequest | None = None
    ranking: Ranking | None = None
    search: SearchResult | None = None
    reply: Reply = Reply(b"")
    error: Exception | None = None

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
    values = [value for each, value in call.headers if each == name]
    return str(values[0]) if len(values) == 1 else None


def request_id_of(call: Call) -> str:
    """The caller's id of the request, or a new one if the caller sent none that fits into a line of a log."""
    given = header(call, REQUEST_ID) or ""
    return given if _VALID_REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
