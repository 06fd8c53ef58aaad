"""The endpoint of a path: it takes requests in the dialects of the path, and answers in the same."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Any, ParamSpec, TypeAlias, TypeVar

from starlette.types import Receive, Scope, Send

from rerank.errors import RerankError
from rerank.ports.http.body import json_object
from rerank.ports.http.call import HttpCall, HungUp
from rerank.ports.http.dialects.dialect import Dialect
from rerank.ports.http.dialects.options import fields_without_effect
from rerank.ports.http.dialects.table import ByField, chosen, error_body
from rerank.ports.http.fitting import RequestFitter
from rerank.ports.http.headers import execution_headers, header_value, warnings_header, warnings_of
from rerank.ports.http.pairs import joined
from rerank.ports.http.problem import problem_of
from rerank.service.answer import Method, answer
from rerank.service.call import REQUEST_ID, CallRecord, OnEnd, Reply
from rerank.service.in_flight import SMALL_MESSAGE, CallsInFlight
from rerank.service.requests import check_number_of_candidates

T = TypeVar("T")
P = ParamSpec("P")
#: Answers a request of the call of this record with its ranking or search result.
Run: TypeAlias = Callable[[Any, CallRecord], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class HttpReply(Reply):
    """A reply with its status and its headers."""

    status: HTTPStatus = HTTPStatus.OK
    headers: Mapping[str, str] = field(default_factory=dict)


class Endpoint:
    """An ASGI application that answers the POST requests of a path.

    Args:
        dialects: those of the path.
        run: answers a request of the service.
        calls: the limits of calls in flight, and the keys; the same as those of gRPC.
        on_end: called when a request was answered.
        max_bytes: limit on the size of a request.
        fitter: fits requests to this service.
        convert: computes a function of some arguments beside other calls.
    """

    def __init__(
        self,
        dialects: ByField,
        run: Run,
        calls: CallsInFlight,
        on_end: OnEnd,
        max_bytes: int,
        fitter: RequestFitter,
        convert: Callable[..., Awaitable[Any]],
    ) -> None:
        self._dialects, self._run = dialects, run
        self._calls, self._on_end = calls, on_end
        self._max_bytes, self._fitter, self._convert = max_bytes, fitter, convert

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = HttpCall(scope, receive, self._calls, self._max_bytes)
        method = Method(f"POST {scope['path']}", partial(self._respond, call), self._calls, self._on_end)
        try:
            record = await answer(call, method)
            if record.error is not None and record.error is not record.reply.error:  # the dialect was not known yet
                record.reply = _refusal(record.error, self._dialects.values())
            await _send(record, send)
        except HungUp:
            pass
        finally:
            call.finish()

    async def _respond(self, call: HttpCall, message: bytes | bytearray, record: CallRecord) -> Reply:
        """Answers a request in the dialect of its body, also with an error. Raises: InvalidRequest if it has none."""
        limits = self._calls.limits
        body, warnings = await self._beside(len(message), json_object, message, limits.max_candidates, call.charset)
        dialect = chosen(self._dialects, body)
        try:
            return await self._result(call, dialect, body, warnings, record, len(message))
        except RerankError as error:
            return _refusal(error, [dialect])

    async def _result(
        self,
        call: HttpCall,
        dialect: Dialect,
        body: Mapping[str, Any],
        warnings: Collection[str],
        record: CallRecord,
        size: int,
    ) -> HttpReply:
        limits = self._calls.limits
        if isinstance(candidates := body.get(dialect.passages_field), list):
            check_number_of_candidates(candidates, limits)
        translated = await self._beside(size, dialect.translate, body)
        requests, changes = self._fitter.fitted(translated, limits.max_candidates)
        results = [await call.unless_ended(self._run(request, record)) for request in requests]
        result = results[0]
        if len(results) > 1:
            record.request, record.ranking = requests[0], (result := joined(results))
        ignored = fields_without_effect(dialect.request, body)
        told = [*warnings, *changes, *([f"without effect here: {', '.join(ignored)}"] if ignored else [])]
        headers: dict[str, str] = {}
        if record.ranking is not None:
            told += warnings_of(record.ranking.trace)
            headers = execution_headers(record.ranking.trace)
        reply = await self._beside(size, translated.reply, result, told)
        return HttpReply(reply, headers=headers | warnings_header(told))

    async def _beside(self, size: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Computes a function beside other calls if the request is large."""
        if size <= SMALL_MESSAGE:
            return function(*args, **kwargs)
        result: T = await self._convert(function, *args, **kwargs)
        return result


def _refusal(error: Exception, dialects: Collection[Dialect]) -> HttpReply:
    """The error in the fields of these dialects."""
    names = [dialect.passages_field for dialect in dialects]
    problem = problem_of(error, names[0] if len(names) == 1 else "candidates")
    body = json.dumps(error_body(dialects, problem)).encode()
    return HttpReply(body, error, problem.status, problem.headers)


async def _send(record: CallRecord, send: Send) -> None:
    """Sends the reply. Returns when the client has read all but the last 64 KiB, which are buffered."""
    reply = record.reply
    assert isinstance(reply, HttpReply), "this is a bug: an HTTP call was answered with another kind of reply"
    headers = {
        "content-type": "application/json",
        "content-length": str(len(reply.body)),
        REQUEST_ID: record.request_id,
    } | dict(reply.headers)
    encoded = [(name.encode(), header_value(value).encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": int(reply.status), "headers": encoded})
    await send({"type": "http.response.body", "body": reply.body, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})
