"""Endpoints: receive a request within the limits, let the gRPC servicer answer it, and send the reply or the error."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, ParamSpec, TypeVar, cast

from pydantic_core import from_json
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from rerank.config import ServiceConfig
from rerank.errors import InvalidRequest, RerankError
from rerank.http.call import HttpCall
from rerank.http.dialect import Dialect
from rerank.http.problem import problem_of
from rerank.service.servicer import CallsInFlight
from rerank.v1 import rerank_pb2 as pb

log = logging.getLogger(__name__)

T = TypeVar("T")
P = ParamSpec("P")

#: Bodies up to this size are converted on the event loop; larger ones beside it, as they take milliseconds.
_SMALL_BODY = 64 * 1024
_CLIENT_CLOSED_REQUEST = 499


@dataclass(frozen=True)
class Answer:
    """What is sent to the client."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


class Endpoint:
    """An ASGI application that answers POST requests with a method of the gRPC service.

    Args:
        calls: the limits that HTTP and gRPC share.
        config: limit on the size of a request, and aliases of models.
        choose: body → the dialect of the request.
        undecided: the dialect of errors that come before the body is known.
        method: answers a message of the gRPC service.
    """

    def __init__(
        self,
        calls: CallsInFlight,
        config: ServiceConfig,
        choose: Callable[[Mapping[str, Any]], Dialect],
        undecided: Dialect,
        method: Callable[[Any, Any], Awaitable[Any]],
    ) -> None:
        self._calls, self._max_bytes = calls, config.limits.max_message_bytes
        self._aliases = config.http.model_aliases if config.http else {}
        self._choose, self._undecided, self._method = choose, undecided, method

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call, start_s = HttpCall(scope, receive, self._max_bytes), time.perf_counter()
        status = _CLIENT_CLOSED_REQUEST
        try:
            answer = await self._answer(call)
            status = answer.status
            await send_answer(answer, send)
        except ClientDisconnect:
            pass
        finally:
            call.finish()
            log.info("POST %s %d %.0f ms", scope["path"], status, (time.perf_counter() - start_s) * 1000)

    async def _answer(self, call: HttpCall) -> Answer:
        dialect, context = self._undecided, cast(Any, call)  # it has what is needed of a gRPC context
        try:
            self._calls.enter(context)
            call.check_headers()
            received = await self._calls.receive(context)
            body = await _convert(len(received), _json_object, received)
            dialect = self._choose(body)
            request = await _convert(len(received), dialect.translate, body)
            request.message.model = self._aliases.get(request.message.model, request.message.model)
            response = await _unless_disconnected(self._method(request.message, call), call)
            reply = await _convert(len(received), request.reply, response)
            self._calls.expect_read(reply, context)
            return Answer(HTTPStatus.OK, reply, _execution_headers(response))
        except ClientDisconnect:
            raise
        except Exception as error:
            if not isinstance(error, RerankError):
                log.exception("bug in %s", type(dialect).__name__)
            problem = problem_of(error, dialect.passages_field)
            return Answer(problem.status, json.dumps(dialect.error(problem)).encode(), problem.headers)


async def send_answer(answer: Answer, send: Send) -> None:
    """Sends an answer of JSON. Returns when the client has read all but the last 64 KiB."""
    headers = {"content-type": "application/json", "content-length": str(len(answer.body))} | dict(answer.headers)
    encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": int(answer.status), "headers": encoded})
    await send({"type": "http.response.body", "body": answer.body, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def _json_object(body: bytes) -> dict[str, Any]:
    """Raises: InvalidRequest if the body is no JSON object."""
    try:
        value = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise InvalidRequest("body", f"it is no JSON in UTF-8: {error}") from error
    if not isinstance(value, dict):
        raise InvalidRequest("body", f"it is a JSON {type(value).__name__}; send an object")
    return value


async def _convert(size: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """The function's result, computed in another thread if the request is large."""
    return function(*args, **kwargs) if size <= _SMALL_BODY else await asyncio.to_thread(function, *args, **kwargs)


async def _unless_disconnected(work: Awaitable[T], call: HttpCall) -> T:
    """The result of the work, which is cancelled if the client hangs up. Raises: ClientDisconnect."""
    task, hang_up = asyncio.ensure_future(work), asyncio.ensure_future(call.disconnected())
    try:
        await asyncio.wait({task, hang_up}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        for each in (task, hang_up):
            each.cancel()
        await asyncio.gather(task, hang_up, return_exceptions=True)


def _execution_headers(response: pb.RerankResponse | pb.SearchResponse) -> dict[str, str]:
    """Headers about what ran; the times, in milliseconds, have TEI's names."""
    execution = response.execution
    completeness = pb.Completeness.Name(execution.completeness).removeprefix("COMPLETENESS_").lower()
    return {
        "x-rerank-model": _quoted(execution.model),
        "x-rerank-strategy": _quoted(execution.strategy),
        "x-rerank-completeness": completeness,
        "x-total-time": f"{execution.total_ms:.0f}",
        "x-queue-time": f"{execution.queue_ms:.0f}",
        "x-tokenization-time": f"{execution.prepare_ms:.0f}",
        "x-inference-time": f"{execution.model_ms:.0f}",
    }


def _quoted(text: str) -> str:
    """The text with the characters escaped that a header cannot hold."""
    return json.dumps(text)[1:-1]
