"""MCP over streamable HTTP, at /mcp of the HTTP port, whose keys, Host rules and limits hold."""

from __future__ import annotations

import asyncio

from mcp.server.streamable_http_manager import DEFAULT_MAX_REQUEST_BODY_SIZE, StreamableHTTPSessionManager
from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.types import Message, Receive, Scope, Send

from rerank.errors import RerankError
from rerank.integrations.mcp.local import MCP_CALL, McpCall, local_service
from rerank.integrations.mcp.origins import check_origin
from rerank.integrations.mcp.tools import tool_server
from rerank.ports.http.body import check_number_of_values
from rerank.ports.http.call import HttpCall, HungUp
from rerank.ports.http.hosts import own_names
from rerank.ports.http.problem import problem_of
from rerank.reranking.reranker import AsyncReranker
from rerank.service.call import CallContext, OnEnd, request_id_of
from rerank.service.in_flight import SMALL_MESSAGE, CallsInFlight

#: JSON-RPC: the first of the codes for errors of servers.
_SERVER_ERROR = -32000


class McpEndpoint:
    """An ASGI application that answers the POST requests of MCP clients. There are no sessions.

    Every message counts as a call in flight, and needs a key if the service has keys. A call of a tool is logged like
    one over gRPC.

    Args:
        reranker: answers the tools.
        calls: the limits of calls in flight, and the keys.
        on_end: observes each call of a tool that has ended.
    """

    def __init__(self, reranker: AsyncReranker, calls: CallsInFlight, on_end: OnEnd) -> None:
        self._server = tool_server(local_service(reranker, calls, on_end))
        self._calls, self._convert = calls, reranker.convert
        config = reranker.config
        assert config.http is not None, "this is a bug: without settings of the HTTP port there is no /mcp"
        self._names = own_names(config.http.listen, config.http.allowed_hosts)
        self._is_guarded = config.keeps_strangers_out
        self._max_bytes = min(config.limits.max_message_bytes, DEFAULT_MAX_REQUEST_BODY_SIZE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = HttpCall(scope, receive, self._calls, self._max_bytes)
        try:
            check_origin(Headers(scope=scope), self._names, self._is_guarded)
            caller = self._calls.enter(call)
            body = bytes(await self._calls.receive(call))
            self._calls.hold(call, len(body))
            await self._check_number_of_values(body)
            mcp_call = McpCall(request_id_of(call), CallContext(caller, call.peer, call.deadline_s))
            answer = await call.unless_ended(self._answer({**scope, MCP_CALL: mcp_call}, body))
            self._calls.expect_read(call, sum(len(message.get("body", b"")) for message in answer))
            for message in answer:
                await send(message)
        except HungUp:
            pass
        except RerankError as error:
            await _refusal(error)(scope, receive, send)
        finally:
            call.finish()

    async def _check_number_of_values(self, body: bytes) -> None:
        """Counts the values of a body before it is parsed. Raises: InvalidRequest."""
        most = self._calls.limits.max_candidates
        if len(body) > SMALL_MESSAGE:
            await self._convert(check_number_of_values, body, most)
        else:
            check_number_of_values(body, most)

    async def _answer(self, scope: Scope, body: bytes) -> list[Message]:
        """Answers a message with ASGI events. The answer is never a stream, as the service sends nothing by itself."""
        messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
        answer: list[Message] = []

        async def receive() -> Message:
            return messages.pop() if messages else await asyncio.Future()  # the call itself waits for the hang-up

        async def send(message: Message) -> None:
            answer.append(message)

        manager = StreamableHTTPSessionManager(
            self._server, json_response=True, stateless=True, max_request_body_size=self._max_bytes
        )
        async with manager.run():  # of one request, so that its work ends with it
            await manager.handle_request(scope, receive, send)
        return answer


def _refusal(error: RerankError) -> Response:
    problem = problem_of(error)
    problem_json = {"code": _SERVER_ERROR, "message": problem.message, "data": problem.as_json}
    return JSONResponse({"jsonrpc": "2.0", "id": None, "error": problem_json}, problem.status, problem.headers)
