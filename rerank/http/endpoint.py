"""Endpoints: receive a request within the limits, let the gRPC servicer answer it, and send the reply or the error."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, ParamSpec, TypeVar

import grpc
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from rerank.errors import RerankError
from rerank.grpc.servicer import CallsInFlight, FinishedCall, OnEnd, request_id_of
from rerank.http.answer import Answer, execution_headers, send_answer
from rerank.http.body import json_object
from rerank.http.call import HttpCall
from rerank.http.dialect import Dialect
from rerank.http.problem import problem_of
from rerank.service.convert import check_number_of_candidates
from rerank.service.status import REQUEST_ID

log = logging.getLogger(__name__)

T = TypeVar("T")
P = ParamSpec("P")

#: Bodies up to this size are converted on the event loop; larger ones beside it, as they take milliseconds.
_SMALL_BODY = 64 * 1024


@dataclass(frozen=True)
class Shared:
    """Settings and services that all endpoints share.

    Attributes:
        calls: the limits of calls in flight, and the keys; the same as those of gRPC.
        on_end: called when a request has ended.
        max_bytes: limit on the size of a request.
        model_aliases: name in requests → name of a model.
    """

    calls: CallsInFlight
    on_end: OnEnd
    max_bytes: int
    model_aliases: Mapping[str, str]


class Endpoint:
    """An ASGI application that answers POST requests with a method of the gRPC service.

    Args:
        shared: what all endpoints share.
        choose: body → the dialect of the request.
        undecided: the dialect of errors that come before the body is known.
        method: answers a message of the gRPC service.
    """

    def __init__(
        self,
        shared: Shared,
        choose: Callable[[Mapping[str, Any]], Dialect],
        undecided: Dialect,
        method: Callable[[Any, Any], Awaitable[Any]],
    ) -> None:
        self._calls, self._on_end = shared.calls, shared.on_end
        self._max_bytes, self._aliases = shared.max_bytes, shared.model_aliases
        self._choose, self._undecided, self._method = choose, undecided, method

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call, start_s = HttpCall(scope, receive, self._max_bytes), time.perf_counter()
        exchange = _Exchange(self._undecided, request_id_of(call.as_context))
        try:
            answer = await self._answer(call, exchange)
            await send_answer(answer, send)
        except ClientDisconnect:
            exchange.outcome = grpc.StatusCode.CANCELLED.name
        finally:
            call.finish()
            self._on_end(exchange.finished(f"POST {scope['path']}", time.perf_counter() - start_s))
            if exchange.error is not None:
                exchange.error.__traceback__ = None  # its frames hold the request, and one another until a collection

    async def _answer(self, call: HttpCall, exchange: _Exchange) -> Answer:
        try:
            self._calls.enter(call.as_context)
            call.check_headers()
            async with self._calls.until_drained():
                reply = await self._reply(call, exchange)
            self._calls.expect_read(reply, call.as_context)
            return Answer(HTTPStatus.OK, reply, exchange.headers | execution_headers(exchange.response))
        except ClientDisconnect:
            raise
        except Exception as error:
            if not isinstance(error, RerankError):
                log.exception("bug in %s, request %s", type(exchange.dialect).__name__, exchange.request_id)
            problem = problem_of(error, exchange.dialect.passages_field)
            exchange.error, exchange.outcome = error, problem.code_name
            body = json.dumps(exchange.dialect.error(problem)).encode()
            return Answer(problem.status, body, exchange.headers | problem.headers)

    async def _reply(self, call: HttpCall, exchange: _Exchange) -> bytes:
        received = await self._calls.receive(call.as_context)
        size = len(received)
        limits = self._calls.limits
        body = await _convert(size, json_object, received, limits.max_candidates)
        exchange.dialect = self._choose(body)
        if isinstance(candidates := body.get(exchange.dialect.passages_field), list):
            check_number_of_candidates(candidates, limits)
        translated = await _convert(size, exchange.dialect.translate, body)
        exchange.request = translated.message
        exchange.request.model = self._aliases.get(exchange.request.model, exchange.request.model)
        exchange.response = await _unless_disconnected(self._method(exchange.request, call), call)
        return await _convert(size, translated.reply, exchange.response)


@dataclass
class _Exchange:
    """A request with its dialect, its messages and its outcome so far."""

    dialect: Dialect
    request_id: str
    outcome: str = grpc.StatusCode.OK.name
    request: Any = None
    response: Any = None
    error: Exception | None = None

    @property
    def headers(self) -> dict[str, str]:
        return {REQUEST_ID: self.request_id}

    def finished(self, name: str, seconds: float) -> FinishedCall:
        return FinishedCall(name, self.outcome, seconds, self.request_id, self.request, self.response, self.error)


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
