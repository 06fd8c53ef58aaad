"""The endpoint of a path: it takes requests in the dialects of the path, and answers in the same."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Any, ParamSpec, TypeAlias, TypeVar

from starlette.types import Receive, Scope, Send

from rerank.errors import reason_of
from rerank.ports.http.body import json_object
from rerank.ports.http.call import HttpCall, HungUp
from rerank.ports.http.dialects.dialect import Dialect
from rerank.ports.http.dialects.options import fields_without_effect
from rerank.ports.http.dialects.table import ByField, chosen, error_body
from rerank.ports.http.fitting import RequestFitter
from rerank.ports.http.problem import problem_of
from rerank.service.answer import Method, answer
from rerank.service.call import REQUEST_ID, CallRecord, OnEnd
from rerank.service.in_flight import SMALL_MESSAGE, CallsInFlight
from rerank.service.requests import check_number_of_candidates
from rerank.types import Trace

T = TypeVar("T")
P = ParamSpec("P")
#: Proxies refuse responses with longer headers.
_MAX_HEADER_CHARS = 2000
#: Answers a request of the call of this record with its ranking or search result.
Run: TypeAlias = Callable[[Any, CallRecord], Awaitable[Any]]


@dataclass
class Exchange:
    """A request and its answer.

    Attributes:
        unless_ended: returns the result of some work, which it cancels if the request ends before.
        dialects: those that the request may be in; once it was read, its own alone.
        warnings: what the caller is told beside the ranking.
    """

    unless_ended: Callable[[Awaitable[Any]], Awaitable[Any]]
    dialects: Collection[Dialect]
    warnings: list[str] = field(default_factory=list)


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
        exchange = Exchange(call.unless_ended, self._dialects.values())
        method = Method(f"POST {scope['path']}", partial(self.respond, exchange), self._calls, self._on_end)
        try:
            record = await answer(call, method)
            await _send(record, exchange, send)
        except HungUp:
            pass
        finally:
            call.finish()

    async def respond(self, exchange: Exchange, message: bytes | bytearray, record: CallRecord) -> bytes:
        """Answers a request in the dialect of its body. Notes the dialect and the warnings in `exchange`."""
        size, limits = len(message), self._calls.limits
        body = await self._beside(size, json_object, message, limits.max_candidates)
        dialect = chosen(self._dialects, body)
        exchange.dialects = [dialect]
        if isinstance(candidates := body.get(dialect.passages_field), list):
            check_number_of_candidates(candidates, limits)
        translated = await self._beside(size, dialect.translate, body)
        request, exchange.warnings = self._fitter.fitted(translated, limits.max_candidates)
        if ignored := fields_without_effect(dialect.request, body):
            exchange.warnings.append(f"without effect here: {', '.join(ignored)}")
        result = await exchange.unless_ended(self._run(request, record))
        if record.ranking is not None:
            exchange.warnings += _warnings(record.ranking.trace)
        return await self._beside(size, translated.reply, result, exchange.warnings)

    async def _beside(self, size: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Computes a function beside other calls if the request is large."""
        if size <= SMALL_MESSAGE:
            return function(*args, **kwargs)
        result: T = await self._convert(function, *args, **kwargs)
        return result


def _warnings(trace: Trace) -> list[str]:
    """Warnings about a ranking: texts that were truncated or not read, and doubts about the model."""
    query = "the query is longer than the model reads and was truncated" if trace.query_truncated else ""
    cut = len(trace.truncated_doc_ids)
    truncated = f"{cut} documents are longer than the model reads and were truncated" if cut else ""
    dropped = [f"document {each.doc_id} was dropped as a near duplicate of {each.similar_to}" for each in trace.dropped]
    set_back = [f"document {each.doc_id} was set back, as it is like {each.similar_to}" for each in trace.set_back]
    return [each for each in (query, truncated, trace.reason, trace.model_warning, *dropped, *set_back) if each]


async def _send(record: CallRecord, exchange: Exchange, send: Send) -> None:
    """Sends the reply, or the error. Returns when the client has read all but the last 64 KiB, which are buffered."""
    status, body, headers = HTTPStatus.OK, record.reply, {}
    if record.error is None:
        headers = _execution_headers(record.ranking.trace) if record.ranking else {}
    else:
        names = [dialect.passages_field for dialect in exchange.dialects]
        problem = problem_of(record.error, names[0] if len(names) == 1 else "candidates")
        status, headers = problem.status, problem.headers
        body = json.dumps(error_body(exchange.dialects, problem)).encode()
    if exchange.warnings:
        headers = headers | {"x-rerank-warnings": _escaped("; ".join(exchange.warnings))[:_MAX_HEADER_CHARS]}
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
    """Headers about the model and its work. The times, in milliseconds, have TEI's names."""
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
    """Escapes the characters that a header cannot hold."""
    return json.dumps(text)[1:-1]
