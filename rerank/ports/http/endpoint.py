"""The endpoint of a path: it takes requests in the dialects of the path, and answers in the same, with headers."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from http import HTTPStatus
from typing import Any, ParamSpec, TypeAlias, TypeVar

from starlette.types import Receive, Scope, Send

from rerank.errors import RerankError, reason_of
from rerank.ports.http.call import HttpCall, HungUp, json_object
from rerank.ports.http.dialects.dialect import Dialect, Translated
from rerank.ports.http.dialects.options import fields_without_effect
from rerank.ports.http.dialects.table import ByField, chosen, error_body
from rerank.ports.http.problem import problem_of
from rerank.reranking.reranker import AsyncReranker
from rerank.service.answer import Method, answer
from rerank.service.call import REQUEST_ID, CallContext, OnEnd, ReadCall, Reply
from rerank.service.in_flight import SMALL_MESSAGE, CallsInFlight
from rerank.service.requests import RerankRequest, SearchRequest, check_number_of_candidates
from rerank.types import Ranking, Trace

T = TypeVar("T")
P = ParamSpec("P")
#: The alias of every name that neither is a model nor has an alias of its own.
ANY_NAME = "*"
_MAX_QUOTED_CHARS = 100
#: Answers a request with its ranking or search result. Raises: RerankError.
Run: TypeAlias = Callable[[Any, CallContext], Awaitable[Any]]
#: Proxies refuse answers with longer headers.
_MAX_HEADER_CHARS = 2000


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
        method = Method(f"POST {scope['path']}", partial(self._read, call), self._calls, self._on_end)
        try:
            request_id, reply = await answer(call, method)
            if not isinstance(reply, HttpReply):  # the dialect was not known yet
                assert reply.error is not None, "this is a bug: an HTTP call was answered with another kind of reply"
                reply = _refusal(reply.error, self._dialects.values())
            await _send(request_id, reply, send)
        except HungUp:
            pass
        finally:
            call.finish()

    async def _read(self, call: HttpCall, message: bytes | bytearray) -> ReadCall:
        """Reads a body. Raises: InvalidRequest if its dialect is not known."""
        limits, size = self._calls.limits, len(message)
        body, warnings = await self._beside(size, json_object, message, limits.max_candidates, call.charset)
        dialect = chosen(self._dialects, body)
        try:
            if isinstance(candidates := body.get(dialect.passages_field), list):
                check_number_of_candidates(candidates, limits)
            translated = await self._beside(size, dialect.translate, body)
            request, changes = self._fitter.fitted(translated, limits.max_candidates)
        except RerankError as error:
            return ReadCall(None, partial(_refuse, dialect, error))
        ignored = fields_without_effect(dialect.request, body)
        notes = [*warnings, *changes, *([f"without effect here: {', '.join(ignored)}"] if ignored else [])]

        async def run(context: CallContext) -> HttpReply:
            try:
                result = await call.unless_ended(self._run(request, context))
                ranking = result if isinstance(result, Ranking) else result.ranking
                all_notes = [*notes, *warnings_of(ranking.trace)]
                reply = await self._beside(size, translated.reply, result, all_notes)
            except RerankError as error:
                return _refusal(error, [dialect])
            headers = execution_headers(ranking.trace)
            if all_notes:
                headers["x-rerank-warnings"] = "; ".join(all_notes)
            return HttpReply(reply, result, headers=headers)

        return ReadCall(request, run)

    async def _beside(self, size: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Computes a function beside other calls if the request is large."""
        if size <= SMALL_MESSAGE:
            return function(*args, **kwargs)
        result: T = await self._convert(function, *args, **kwargs)
        return result


class RequestFitter:
    """Fits requests of programs that were written for other services.

    Args:
        reranker: has the models, and the aliases of its configuration.
    """

    def __init__(self, reranker: AsyncReranker) -> None:
        self._reranker = reranker
        self._names = {model.name for model in reranker.config.models}
        self._aliases = reranker.config.http.model_aliases if reranker.config.http else {}

    def fitted(self, translated: Translated, max_candidates: int) -> tuple[RerankRequest | SearchRequest, list[str]]:
        """Returns the request as this service can answer it, and a warning about each change."""
        request, best_effort, warnings = translated.request, translated.best_effort, list[str]()
        options = request.options
        if (name := self._meant(options.model)) != options.model:
            warnings.append(f"model {options.model[:_MAX_QUOTED_CHARS]!r} is an alias of {name}, which answers")
            options = replace(options, model=name)
        if "min_relevance" in best_effort and options.min_relevance is not None and not self._gives_relevance(name):
            warnings.append(f"score_threshold has no effect, as model {name or 'default'} gives no relevance")
            options = replace(options, min_relevance=None)
        candidates = len(request.candidates) if isinstance(request, RerankRequest) else 0
        if "max_chunks_per_doc" in best_effort and candidates:
            most = max(1, max_candidates // candidates)
            if options.max_chunks_per_doc > most:
                warnings.append(f"max_chunks_per_doc is {most}, the most for {candidates} documents")
                options = replace(options, max_chunks_per_doc=most)
        return (replace(request, options=options) if warnings else request), warnings

    def _meant(self, name: str) -> str:
        if not name or (name in self._names and name not in self._aliases):
            return name
        return self._aliases.get(name) or self._aliases.get(ANY_NAME, name)

    def _gives_relevance(self, name: str) -> bool:
        """True also for a name that no model has, because the service refuses such a request later."""
        found = (model for model in self._reranker.models() if model.name == name or (not name and model.is_default))
        return all(model.gives_relevance for model in found)


async def _refuse(dialect: Dialect, error: RerankError, _: CallContext) -> HttpReply:
    return _refusal(error, [dialect])


def _refusal(error: Exception, dialects: Collection[Dialect]) -> HttpReply:
    """The error in the fields of these dialects."""
    names = [dialect.passages_field for dialect in dialects]
    problem = problem_of(error, names[0] if len(names) == 1 else "candidates")
    body = json.dumps(error_body(dialects, problem)).encode()
    return HttpReply(body, None, error, problem.status, problem.headers)


async def _send(request_id: str, reply: HttpReply, send: Send) -> None:
    """Sends the reply. Returns when the client has read all but the last 64 KiB, which are buffered."""
    headers = {
        "content-type": "application/json",
        "content-length": str(len(reply.body)),
        REQUEST_ID: request_id,
    } | dict(reply.headers)
    encoded = [(name.encode(), header_value(value).encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": int(reply.status), "headers": encoded})
    await send({"type": "http.response.body", "body": reply.body, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def header_value(text: str) -> str:
    """A text as the value of a header: ASCII without control characters, not too long, and no space at its ends."""
    return json.dumps(text)[1:-1].replace("\x7f", r"\u007f")[:_MAX_HEADER_CHARS].strip()


def execution_headers(trace: Trace) -> dict[str, str]:
    """Headers about the model and its work. The times, in milliseconds, have TEI's names."""
    failure = {"x-rerank-failure": reason_of(trace.failure)} if trace.failure else {}
    return failure | {
        "x-rerank-model": trace.model,
        "x-rerank-strategy": trace.strategy,
        "x-rerank-completeness": trace.completeness.value,
        "x-total-time": f"{trace.total_ms:.0f}",
        "x-queue-time": f"{trace.queue_ms:.0f}",
        "x-tokenization-time": f"{trace.prepare_ms:.0f}",
        "x-inference-time": f"{trace.model_ms:.0f}",
    }


def warnings_of(trace: Trace) -> list[str]:
    """Warnings about a ranking: texts that were truncated or not read, and doubts about the model."""
    query = "the query was longer than the model can read and was truncated" if trace.query_truncated else ""
    cut = len(trace.truncated_doc_ids)
    documents = "1 document was" if cut == 1 else f"{cut} documents were"
    truncated = f"{documents} longer than the model can read and {documents.split()[-1]} truncated" if cut else ""
    return [note for note in (query, truncated, trace.reason, trace.model_warning) if note]
