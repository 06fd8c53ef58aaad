"""A call: what its port knows of it, and what became of it, for the log, the metrics and the traces."""

from __future__ import annotations

import re
import reprlib
import uuid
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from rerank.errors import grpc_status_of, reason_of
from rerank.service.requests import RerankRequest, SearchRequest
from rerank.types import Ranking

if TYPE_CHECKING:
    from rerank.reranking.reranker import SearchResult  # imports torch, which MCP needs only if it loads models

#: Header that names a call in the log: taken from the caller or made here, and returned with the answer.
REQUEST_ID = "x-request-id"
_VALID_REQUEST_ID = re.compile(r"[!-~]{1,128}")

#: Names in lower case, and values; gRPC calls them metadata.
Headers: TypeAlias = Sequence[tuple[str, str | bytes]]


def only_value(headers: Headers, name: str) -> str | None:
    """The only value of a header; None if there is none, or several."""
    found = None
    for given, value in headers:
        if given == name:
            if found is not None:
                return None
            found = str(value)
    return found


def request_id_of(headers: Headers) -> str:
    """The caller's id of the request, or a new one if the caller sent none that fits into a line of a log."""
    given = only_value(headers, REQUEST_ID) or ""
    return given if _VALID_REQUEST_ID.fullmatch(given) else uuid.uuid4().hex


class PortCall(Protocol):
    """A call as its port knows it."""

    @property
    def peer(self) -> str:
        """The client's connection, such as "ipv4:127.0.0.1:40000"."""
        ...

    @property
    def authorization(self) -> str | None:
        """The header of this name, "Bearer KEY"; None without it."""
        ...

    @property
    def request_id(self) -> str:
        """See `request_id_of`."""
        ...

    @property
    def deadline_s(self) -> float:
        """The client's deadline on the event loop's clock, known once the message is read; infinity if it set none."""
        ...

    async def read(self, slot: AbstractAsyncContextManager[None]) -> bytes | bytearray:
        """Reads the message. Raises: RerankError if it is refused, CancelledError if the client hangs up.

        Args:
            slot: waits for a slot among the messages that are received; a large message needs one.
        """
        ...

    def hang_up(self) -> None:
        """Ends the connection of a client that does not read its answer."""
        ...


@dataclass(eq=False)
class CallRecord:
    """A call; str() is its line in the log, without any text of the request.

    Attributes:
        method: name of the method.
        request_id: the caller's id of the request, or a new one.
        peer: the client's connection.
        seconds: from the arrival of the call to its answer.
        key: the name of the caller's API key; empty without one.
        request: None until it is read, and for a call that ranks nothing.
        result: None until there is one, and for a call that ranks nothing.
        error: the exception that ended the call.
        is_cancelled: the client hung up.
    """

    method: str
    request_id: str
    peer: str
    seconds: float = 0.0
    key: str = ""
    request: RerankRequest | SearchRequest | None = None
    result: Ranking | SearchResult | None = None
    error: Exception | None = None
    is_cancelled: bool = False

    @property
    def status(self) -> str:
        """The name of the gRPC status."""
        if self.is_cancelled:
            return "CANCELLED"
        return "OK" if self.error is None else grpc_status_of(type(self.error))

    @property
    def ranking(self) -> Ranking | None:
        """The ranking that answered the call."""
        return self.result if isinstance(self.result, Ranking | None) else self.result.ranking

    @property
    def search(self) -> SearchResult | None:
        return None if isinstance(self.result, Ranking) else self.result

    @property
    def model(self) -> str | None:
        """The model that ran, or else the model that the request names; None for a call that ranks nothing."""
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
        text = f"{self.method} {self.status} {self.seconds * 1000:.0f} ms id={self.request_id}"
        for name, value in fields.items():
            if value not in ("", "''"):
                text += f" {name}={value}"
        return text


#: Observes a call that has ended.
OnEnd: TypeAlias = Callable[[CallRecord], None]
