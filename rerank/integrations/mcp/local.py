"""Answers calls of the MCP tools with the models of this process, and logs them like the calls of any other port."""

from __future__ import annotations

import time
import uuid
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any

from rerank.access.callers import STRANGER
from rerank.integrations.mcp.tools import ToolAnswer, ToolRequest, ToolService, tool_answer
from rerank.ports.message_methods import MessageMethods
from rerank.protobuf.replies import list_models_response
from rerank.reranking.reranker import AsyncReranker
from rerank.service.call import CallContext, CallRecord, OnEnd, ReadCall, Reply
from rerank.service.in_flight import CallsInFlight
from rerank.service.methods import served_models
from rerank.v1 import rerank_pb2 as pb


@dataclass(frozen=True, slots=True)
class McpCall:
    """A message of an MCP client, which may call a tool."""

    request_id: str
    context: CallContext


#: Name in the ASGI scope of an HTTP request → its McpCall.
MCP_CALL = "rerank.mcp_call"


def local_service(reranker: AsyncReranker, calls: CallsInFlight, on_end: OnEnd) -> ToolService:
    """The service of an open reranker in this process. `on_end` observes each call of a tool."""
    methods = MessageMethods(reranker, calls)

    async def ask(request: ToolRequest, http_request: Any) -> ToolAnswer:
        call = http_request.scope[MCP_CALL] if http_request else _over_stdio()
        if isinstance(request, pb.SearchRequest):
            reply = await _observed("Search", methods.search(request), call, on_end)
            return tool_answer(pb.SearchResponse.FromString(reply.body))
        reply = await _observed("Rerank", methods.rerank(request), call, on_end)
        return tool_answer(pb.RerankResponse.FromString(reply.body))

    def models() -> pb.ListModelsResponse:
        return list_models_response(served_models(reranker))

    return ToolService(ask, models, lambda: calls.limits)


def _over_stdio() -> McpCall:
    return McpCall(uuid.uuid4().hex, CallContext(STRANGER, "stdio"))


async def _observed(method: str, reading: Awaitable[ReadCall], call: McpCall, on_end: OnEnd) -> Reply:
    """The reply to a call of a tool, whose record goes to `on_end`. Raises: RerankError."""
    start_s, request, reply = time.perf_counter(), None, None
    try:
        read = await reading
        request = read.request
        reply = await read.run(call.context)
        return reply
    except Exception as error:
        reply = Reply(error=error)
        raise
    finally:
        seconds, context = time.perf_counter() - start_s, call.context
        on_end(CallRecord(method, call.request_id, context.peer, seconds, context.caller, request, reply))
