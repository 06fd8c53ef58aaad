"""The endpoint of a path: takes requests in the dialects of the path, and sends the reply or the error in theirs."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import Any, ParamSpec, Protocol, TypeAlias, TypeVar

from starlette.types import Receive, Scope, Send

from rerank.ports.http.body import json_object
from rerank.ports.http.call import HttpCall, HungUp
from rerank.ports.http.dialect import Dialect, chosen, error_body
from rerank.ports.http.problem import problem_of
from rerank.service.calls import SMALL_MESSAGE, CallRecord, CallsInFlight, Method, OnEnd, answer
from rerank.service.requests import RerankRequest, SearchRequest, check_number_of_candidates
from rerank.service.status import REQUEST_ID, reason_of
from rerank.types import Trace

T = TypeVar("T")
P = ParamSpec("P")
#: Answers a request of the call of this record with its ranking or search result.
Run: TypeAlias = Callable[[Any, CallRecord], Awaitable[Any]]


class Body(Protocol):
    """A body as `Endpoint.respond` needs it; an HttpCall is one."""

    #: Those that it may be in; then its own.
    dialects: Sequence[Dialect]

    async def unless_ended(self, work: Awaitable[T]) -> T:
        """The result of the work, which may be cancelled."""
        ...


class Endpoint:
    """An ASGI application that answers the POST requests of a path.

    Args:
        dialects: those of the path.
        run: answers a request of the service.
        calls: the limits of calls in flight, and the keys; the same as those of gRPC.
        on_end: called when a request was answered.
        max_bytes: limit on the size of a request.
        aliases: name in requests → name of a model.
        convert: a function and its arguments → its result, computed beside other calls.
    """

    def __init__(
        self,
        dialects: Sequence[Dialect],
        run: Run,
        calls: CallsInFlight,
        on_end: OnEnd,
        max_bytes: int,
        aliases: Mapping[str, str],
        convert: Callable[..., Awaitable[Any]],
    ) -> None:
        self._dialects, self._run = dialects, run
        self._calls, self._on_end = calls, on_end
        self._max_bytes, self._aliases, self._convert = max_bytes, aliases, convert

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = HttpCall(scope, receive, self._calls, self._max_bytes, self._dialects)
        method = Method(f"POST {scope['path']}", partial(self.respond, call), self._calls, self._on_end)
        try:
            record = await answer(call, method)
            await _send(record, call.dialects, send)
        except HungUp:
            pass
        finally:
            call.finish()

    async def respond(self, call: Body, message: bytes | bytearray, record: CallRecord) -> bytes:
        """The reply to a request in the dialect that its body chooses."""
        size, limits = len(message), self._calls.limits
        body = await self._beside(size, json_object, message, limits.max_candidates)
        dialect = chosen(call.dialects, body)
        call.dialects = [dialect]
        if isinstance(candidates := body.get(dialect.passages_field), list):
            check_number_of_candidates(candidates, limits)
        translated = await self._beside(size, dialect.translate, body)
        request = self._with_model(translated.request)
        result = await call.unless_ended(self._run(request, record))
        return await self._beside(size, translated.reply, result)

    def _with_model(self, request: RerankRequest | SearchRequest) -> RerankRequest | SearchRequest:
        """The request, with the model that its name is an alias of."""
        name = request.options.model
        if name not in self._aliases:
            return request
        return replace(request, options=replace(request.options, model=self._aliases[name]))

    async def _beside(self, size: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The function's result, computed beside other calls if the request is large."""
        if size <= SMALL_MESSAGE:
            return function(*args, **kwargs)
        result: T = await self._convert(function, *args, **kwargs)
        return result


async def _send(record: CallRecord, dialects: Sequence[Dialect], send: Send) -> None:
    """Sends the reply, or the error. Returns when the client has read all but the last 64 KiB, which are buffered."""
    status, body, headers = HTTPStatus.OK, record.reply, {}
    if record.error is None:
        headers = _execution_headers(record.ranking.trace) if record.ranking else {}
    else:
        problem = problem_of(record.error, dialects[0].passages_field if len(dialects) == 1 else "candidates")
        status, headers, body = problem.status, problem.headers, json.dumps(error_body(dialects, problem)).encode()
    headers = {
        "content-type": "application/json",
        "content-length": str(len(body)),
        REQUEST_ID: record.request_id,
    } | headers
    encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": int(status), "headers": encoded})
    await send({"type": "http.response.body", "body": body, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def _execution_headers(trace: Trace) -> dict[str, str]:
    """Headers about what ran; the times, in milliseconds, have TEI's names."""
    failure = {"x-rerank-failure": reason_of(trace.failure)} if trace.failure else {}
    return failure | {
        "x-rerank-model": _escaped(trace.model),
        "x-rerank-strategy": _escaped(trace.strategy),
        "x-rerank-completeness": trace.completeness.value,
        "x-rerank-cached-vectors": str(trace.cached_vectors),
        "x-total-time": f"{trace.total_ms:.0f}",
        "x-queue-time": f"{trace.queue_ms:.0f}",
        "x-tokenization-time": f"{trace.prepare_ms:.0f}",
        "x-inference-time": f"{trace.model_ms:.0f}",
    }


def _escaped(text: str) -> str:
    """The text with the characters escaped that a header cannot hold."""
    return json.dumps(text)[1:-1]
