"""Calls of the MCP tools, answered by the models of this process as calls of any other port are."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from rerank.ports.http.call import HttpCall
from rerank.ports.mcp.tools import ToolAnswer, ToolRequest, ToolService, tool_answer
from rerank.ports.message_methods import MessageMethods
from rerank.protobuf.replies import list_models_response
from rerank.reranking.reranker import AsyncReranker
from rerank.service.answer import Method, answer
from rerank.service.call import CallRecord, OnEnd
from rerank.service.in_flight import CallsInFlight
from rerank.service.methods import served_models
from rerank.v1 import rerank_pb2 as pb

#: Name in the ASGI scope of an HTTP request → its McpPost.
HTTP_CALL = "rerank.call"


class McpPost(HttpCall):
    """A message that came over HTTP. It is a call in flight until a call of a tool takes its place.

    Attributes:
        is_counted: whether it is.
        body: the message, once it was read.
    """

    is_counted = True
    body: bytes | bytearray = b""

    async def read(self) -> bytearray:
        """The message. Raises: see `HttpCall.read`."""
        self.body = body = await super().read()
        return body

    def give_way(self) -> None:
        """Lets a call of a tool be counted in the place of the message."""
        self.is_counted = False
        self.finish()


class ToolCall:
    """A call of a tool, see `rerank.service.call.Call`: the same limits, keys and log as for any other call.

    Args:
        http: the HTTP request in which the call came; None if it came over standard input.
    """

    def __init__(self, http: McpPost | None) -> None:
        self._http = http
        self._on_done: list[Callable[[], object]] = []
        self.peer = http.peer if http else "stdio"
        self.headers: Sequence[tuple[str, str | bytes]] = http.headers if http else ()
        self.deadline = http.deadline if http else math.inf

    async def read(self) -> bytes | bytearray:
        """The message that holds the call, as it was received; empty over standard input."""
        return self._http.body if self._http else b""

    def on_done(self, function: Callable[[], object]) -> None:
        """Registers what to call when the client has the answer."""
        (self._http.on_done if self._http else self._on_done.append)(function)

    def hang_up(self) -> None:
        """Ends the connection, if there is one."""
        if self._http:
            self._http.hang_up()

    def finish(self) -> None:
        """Calls what `on_done` has registered, unless the HTTP request does that later."""
        while self._on_done:
            self._on_done.pop()()


def local_service(reranker: AsyncReranker, calls: CallsInFlight, on_end: OnEnd) -> ToolService:
    """The service of an open reranker in this process."""
    methods = MessageMethods(reranker, calls)

    async def ask(request: ToolRequest, http_request: Any) -> ToolAnswer:
        found: list[ToolAnswer] = []

        async def respond(_: object, record: CallRecord) -> bytes:
            if isinstance(request, pb.SearchRequest):
                found.append(tool_answer(await methods.search(request, record)))
            else:
                found.append(tool_answer(await methods.rerank(request, record)))
            return found[0].text.encode()

        name = "Search" if isinstance(request, pb.SearchRequest) else "Rerank"
        post: McpPost | None = http_request and http_request.scope[HTTP_CALL]
        call = ToolCall(post)
        if post is not None:
            post.give_way()
        try:
            record = await answer(call, Method(name, respond, calls, on_end))
        finally:
            call.finish()
        if record.error is not None:
            raise record.error
        return found[0]

    def models() -> pb.ListModelsResponse:
        return list_models_response(served_models(reranker))

    return ToolService(ask, models, lambda: calls.limits)
