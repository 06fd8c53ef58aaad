"""The service behind the MCP tools: the models of this process, or a service elsewhere."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from rerank.client.client import AsyncRerankClient
from rerank.http.call import HttpCall
from rerank.integrations.mcp_tools import ToolRequest, ToolResponse, ToolService
from rerank.reranker import AsyncReranker
from rerank.service.calls import CallsInFlight, OnEnd, answer
from rerank.service.methods import list_models_response, rerank_methods
from rerank.v1 import rerank_pb2 as pb

#: Name in the ASGI scope of an HTTP request → its HttpCall.
HTTP_CALL = "rerank.call"


@dataclass(frozen=True, eq=False)
class ToolCall:
    """A call of a tool, see `rerank.service.calls.Call`: the same limits, keys and log as for any other call.

    Attributes:
        message: the bytes of the request that the tool makes.
        on_done: registers what to call when the client has the answer.
    """

    message: bytes
    on_done: Callable[[Callable[[], object]], object]
    peer: str = "stdio"
    headers: Sequence[tuple[str, str | bytes]] = ()
    deadline: float = math.inf

    async def read(self) -> bytes:
        """The message."""
        return self.message


def local_service(reranker: AsyncReranker, calls: CallsInFlight, on_end: OnEnd) -> ToolService:
    """The service of an open reranker in this process."""
    methods = rerank_methods(reranker, calls, on_end)

    async def ask(request: ToolRequest, http_request: Any) -> ToolResponse:
        method = methods["Search" if isinstance(request, pb.SearchRequest) else "Rerank"]
        http: HttpCall | None = None if http_request is None else http_request.scope[HTTP_CALL]
        with ExitStack() as done:
            message = request.SerializeToString()
            if http is None:
                call = ToolCall(message, done.callback)
            else:
                call = ToolCall(message, http.on_done, http.peer, http.headers, http.deadline)
            record = await answer(call, method)
        if record.error is not None:
            raise record.error
        return record.response

    def models() -> pb.ListModelsResponse:
        return list_models_response(reranker.models(), reranker.index.manifest if reranker.index else None)

    return ToolService(ask, models, lambda: calls.limits)


async def remote_service(client: AsyncRerankClient) -> ToolService:
    """The service that a client calls. Raises: ServiceError if it does not answer, or not to this key."""
    described = await client.list_models()

    async def ask(request: ToolRequest, _: Any) -> ToolResponse:
        fields = {field.name: value for field, value in request.ListFields()}
        if isinstance(request, pb.SearchRequest):
            return await client.search(**fields)
        return await client.rerank(fields.pop("query", ""), fields.pop("candidates", ()), **fields)

    return ToolService(ask, lambda: described, lambda: None)
