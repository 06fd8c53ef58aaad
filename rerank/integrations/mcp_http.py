"""MCP over streamable HTTP, at /mcp of the HTTP port: with its keys, its Host rules and its limits."""

from __future__ import annotations

import asyncio
from http import HTTPStatus

from mcp.server.streamable_http_manager import DEFAULT_MAX_REQUEST_BODY_SIZE, StreamableHTTPSessionManager
from starlette.responses import JSONResponse, Response
from starlette.types import Message, Receive, Scope, Send

from rerank.errors import RerankError
from rerank.http.call import HttpCall, HungUp
from rerank.http.problem import problem_of
from rerank.integrations.mcp_local import HTTP_CALL, local_service
from rerank.integrations.mcp_tools import tool_server
from rerank.reranker import AsyncReranker
from rerank.service.calls import CallsInFlight, OnEnd, header

#: JSON-RPC: the first of the codes for errors of servers.
_SERVER_ERROR = -32000


class McpEndpoint:
    """An ASGI application that answers the POST requests of MCP clients. There are no sessions.

    Every request needs a key if the service has keys. A call of a tool counts, and is logged, like one over gRPC.

    Args:
        reranker: answers the tools.
        calls: the limits of calls in flight, and the keys.
        on_end: called when a call of a tool was answered.
    """

    def __init__(self, reranker: AsyncReranker, calls: CallsInFlight, on_end: OnEnd) -> None:
        self._server = tool_server(local_service(reranker, calls, on_end))
        self._calls = calls
        self._max_bytes = min(reranker.config.limits.max_message_bytes, DEFAULT_MAX_REQUEST_BODY_SIZE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = HttpCall(scope, receive, self._calls, self._max_bytes)
        try:
            if self._calls.keys is not None:
                self._calls.keys.authenticate(header(call, "authorization"))
            body = bytes(await self._calls.receive(call))
            await call.unless_ended(self._answer({**scope, HTTP_CALL: call}, body, send))
        except HungUp:
            pass
        except RerankError as error:
            await _refusal(error)(scope, receive, send)
        finally:
            call.finish()

    async def _answer(self, scope: Scope, body: bytes, send: Send) -> None:
        messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Message:
            return messages.pop() if messages else await asyncio.Future()  # the call itself waits for the hang-up

        manager = StreamableHTTPSessionManager(
            self._server, json_response=True, stateless=True, max_request_body_size=self._max_bytes
        )
        async with manager.run():  # of one request, so that its work ends with it
            await manager.handle_request(scope, receive, send)


def _refusal(error: RerankError) -> Response:
    problem = problem_of(error)
    headers = problem.headers | ({"www-authenticate": "Bearer"} if problem.status == HTTPStatus.UNAUTHORIZED else {})
    told = {"code": _SERVER_ERROR, "message": problem.message, "data": problem.as_json}
    return JSONResponse({"jsonrpc": "2.0", "id": None, "error": told}, problem.status, headers)
