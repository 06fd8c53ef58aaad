"""POST /rerank/many: a line of the body is a request, and a line of the reply is an answer, sent when it is done."""

from __future__ import annotations

import json
from collections.abc import Awaitable
from http import HTTPStatus
from typing import TypeVar

from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from rerank.errors import InvalidRequest, RerankError
from rerank.ports.http.call import HttpCall, HungUp
from rerank.ports.http.dialects.table import NATIVE
from rerank.ports.http.endpoint import Endpoint, Exchange
from rerank.ports.http.problem import Problem, problem_of
from rerank.service.answer import Method
from rerank.service.call import CallRecord, OnEnd
from rerank.service.in_flight import CallsInFlight
from rerank.service.streams import OpenStreams, RequestStream

T = TypeVar("T")

MANY = "/rerank/many"
NDJSON = "application/x-ndjson"
#: A body may have this many lines. The port receives it whole, because clients send all of it before they read.
_MAX_LINES = 10_000


class _LinesCall(HttpCall):
    CONTENT_TYPE = NDJSON


async def _awaited(work: Awaitable[T]) -> T:
    """Returns the result of the work of a line, which ends with the work of the whole body."""
    return await work


class ManyEndpoint:
    """An ASGI application that answers the requests on the lines of a body, each a call of its own.

    Args:
        endpoint: answers one of them.
        calls: the limits of calls in flight, and the keys.
        on_end: called when one of them was answered.
        max_bytes: limit on the size of the body.
    """

    def __init__(self, endpoint: Endpoint, calls: CallsInFlight, on_end: OnEnd, max_bytes: int) -> None:
        self._endpoint, self._calls, self._max_bytes = endpoint, calls, max_bytes
        self._streams = OpenStreams(calls)
        self._method = Method(f"POST {MANY}", self._respond, calls, on_end)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = _LinesCall(scope, receive, self._calls, self._max_bytes)
        has_begun = False

        async def send_line(line: bytes, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": line, "more_body": more})

        async def write(number: int, record: CallRecord) -> None:
            outcome = b'"response": ' + record.reply if record.error is None else _error(problem_of(record.error))
            await send_line(b'{"number": %d, %b}\n' % (number, outcome))

        try:
            with self._streams.open(call) as opened:
                lines = iter(_lines(await self._calls.receive(call)))
                headers = [(b"content-type", NDJSON.encode())]
                await send({"type": "http.response.start", "status": int(HTTPStatus.OK), "headers": headers})
                has_begun = True

                async def read() -> bytes | None:
                    return next(lines, None)

                with self._calls.keep_waiting():
                    await call.unless_ended(RequestStream(call, self._method, write, opened).answer_all(read))
                    await send_line(b"", more=False)
        except RerankError as error:
            problem = problem_of(error)
            if has_begun:
                await send_line(b"{%b}\n" % _error(problem), more=False)
            else:
                await JSONResponse(problem.as_json, problem.status, problem.headers)(scope, receive, send)
        except HungUp:
            pass
        finally:
            call.finish()

    async def _respond(self, message: bytes | bytearray, record: CallRecord) -> bytes:
        return await self._endpoint.respond(Exchange(_awaited, NATIVE.values()), message, record)


def _error(problem: Problem) -> bytes:
    return b'"error": ' + json.dumps(problem.as_json).encode()


def _lines(body: bytes | bytearray) -> list[bytes]:
    """Divides a body into its lines, without blank ones. Raises: InvalidRequest if there are none or too many."""
    if (number := body.count(b"\n")) > _MAX_LINES:
        problem = f"it has {number} lines, more than the limit of {_MAX_LINES}; send several bodies, or use gRPC"
        raise InvalidRequest("body", problem)
    if lines := [bytes(line) for line in body.split(b"\n") if not line.isspace() and line]:
        return lines
    raise InvalidRequest("body", "it has no requests; send one on each line")
