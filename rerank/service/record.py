"""The record of a call that ended, for the log, the metrics and the traces."""

from __future__ import annotations

import reprlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from rerank.access.callers import ANONYMOUS, Caller
from rerank.errors import grpc_status_of, reason_of
from rerank.service.requests import RerankRequest, SearchRequest
from rerank.types import Ranking

if TYPE_CHECKING:
    from rerank.reranking.reranker import SearchResult  # imports torch, which MCP needs only if it loads models


@dataclass(eq=False)
class CallRecord:
    """A call; str() is its line in the log, without any text of the request.

    Attributes:
        method: name of the method.
        request_id: the caller's id of the request, or a new one.
        peer: the client's connection.
        seconds: from the arrival of the call to its answer.
        caller: the holder of the call's API key; ANONYMOUS until the key is checked.
        request: None until it is read, and for a call that ranks nothing.
        result: None until there is one, and for a call that ranks nothing.
        error: the exception that ended the call.
        is_cancelled: the client hung up.
    """

    method: str
    request_id: str
    peer: str
    seconds: float = 0.0
    caller: Caller = ANONYMOUS
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
    def key(self) -> str:
        """The name of the caller's API key; empty without one."""
        return self.caller.name

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
        text = "".join(f" {name}={value}" for name, value in fields.items() if value not in ("", "''"))
        return f"{self.method} {self.status} {self.seconds * 1000:.0f} ms id={self.request_id}{text}"


#: Observes a call that has ended.
OnEnd: TypeAlias = Callable[[CallRecord], None]
