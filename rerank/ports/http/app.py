"""The HTTP application: its paths and hosts, and the endpoints, which answer each request in the format of its API."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from http import HTTPStatus
from importlib.metadata import entry_points

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from rerank.errors import RerankError, reason_of
from rerank.ports.http.apis.api import ByField, ParsedRequest, RerankAPI, chosen, error_body
from rerank.ports.http.apis.table import APIs, error_in_all
from rerank.ports.http.call import HttpCall, HungUp, json_object
from rerank.ports.http.description import description_routes, limited_by
from rerank.ports.http.hosts import OwnHosts
from rerank.ports.http.problem import RefusedByHttp, problem_of
from rerank.readers.rows import listed
from rerank.reranking.reranker import AsyncReranker
from rerank.service.call import REQUEST_ID, OnEnd
from rerank.service.limits import CallsInFlight
from rerank.service.requests import RerankRequest, SearchRequest, check_number_of_candidates
from rerank.types import Ranking, Trace

#: Key of `model_aliases` for every name that is neither a model nor another alias.
ANY_NAME = "*"
#: Largest number of characters of a caller's model name in a warning.
_MAX_QUOTED_CHARS = 100
#: Largest number of characters of a header; proxies refuse answers with longer ones.
_MAX_HEADER_CHARS = 2000
#: Error → the answer to a request whose API is not known.
Refuse = Callable[[RerankError], Response]


def create_app(reranker: AsyncReranker, calls: CallsInFlight, on_end: OnEnd, by_path: APIs) -> Starlette:
    """The HTTP application of an open reranker.

    Entry points of the group `rerank.http` add routes: each is a function that takes the reranker and the result of
    `limited_by`, and returns routes.

    Args:
        reranker: answers the requests; its configuration has the limits and the aliases of models.
        calls: counts the calls in flight, and checks limits and keys; shared with the gRPC port.
        on_end: called when a request was answered.
        by_path: path → its APIs.
    """
    config = reranker.config
    endpoints = {path: Endpoint(apis, reranker, calls, on_end) for path, apis in by_path.items()}
    refuse = partial(_refusal_in_all, by_path)
    limited = limited_by(calls, refuse)
    own_hosts = []
    if config.http is not None and not (config.requires_authentication or config.insecure):
        own_hosts = [Middleware(OwnHosts, config.http.listen, config.http.allowed_hosts, refuse)]
    app = Starlette(
        routes=[
            *(Route(path, endpoint, methods=["POST"]) for path, endpoint in endpoints.items()),
            *description_routes(reranker, calls, by_path, limited),
            *(route for part in sorted(entry_points(group="rerank.http")) for route in part.load()(reranker, limited)),
        ],
        middleware=[*own_hosts, Middleware(_PlainPaths)],
        exception_handlers={HTTPException: partial(_no_such_route, refuse)},
    )
    app.router.redirect_slashes = False
    return app


class _PlainPaths:
    """Middleware that removes superfluous slashes of a path, such as //v1/rerank or /v1/rerank/, which clients send.

    It also removes a scheme and a host before the path, as in requests to proxies (RFC 9112, 3.2.2).
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if "//" in path or path[-1:] == "/" or path[:1] != "/":
            parts = re.sub(r"^https?://[^/]*", "", path).split("/")
            scope = {**scope, "path": "/" + "/".join(filter(None, parts))}
        await self._app(scope, receive, send)


def _refusal_in_all(by_path: APIs, error: RerankError) -> Response:
    problem = problem_of(error)
    return JSONResponse(error_in_all(by_path, problem), problem.status, problem.headers)


async def _no_such_route(refuse: Refuse, request: Request, error: Exception) -> Response:
    """Answers a request for a path that does not exist, or with a method that the path does not have."""
    assert isinstance(error, HTTPException)
    path, headers = request.url.path, dict(error.headers or {})
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        message = f"{path} does not take {request.method}; use {headers.get('Allow', 'another method')}"
    else:
        message = f"there is no {path[:200]}; GET /openapi.json lists the paths"
    return refuse(RefusedByHttp(HTTPStatus(error.status_code), message, headers))


@dataclass(frozen=True, slots=True)
class HttpReply:
    """A body with its status and its headers."""

    body: bytes
    status: HTTPStatus = HTTPStatus.OK
    headers: Mapping[str, str] = field(default_factory=dict)


class Endpoint:
    """An ASGI application that answers the POST requests of a path.

    Args:
        apis: the APIs of the path.
        reranker: has the models, the limits and the aliases of models.
        calls: counts the calls in flight, and checks limits and keys; shared with the gRPC port.
        on_end: called when a request was answered.
    """

    def __init__(self, apis: ByField, reranker: AsyncReranker, calls: CallsInFlight, on_end: OnEnd) -> None:
        self._apis, self._reranker = apis, reranker
        self._calls, self._on_end = calls, on_end
        self._names = {model.name for model in reranker.config.models}
        self._aliases = reranker.config.http.model_aliases if reranker.config.http else {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        port = HttpCall(scope, receive, self._calls.limits.max_message_bytes)
        try:
            await _send(port.request_id, await self._reply(port, f"POST {scope['path']}"), send)
        except HungUp:
            pass
        finally:
            self._calls.leave(port)

    async def _reply(self, port: HttpCall, method: str) -> HttpReply:
        """Answers a request. Raises: HungUp."""
        apis, limits, reranker = list(self._apis.values()), self._calls.limits, self._reranker
        try:
            with self._calls.enter(port, method, self._on_end) as call:
                content = await call.receive()
                body, notes = await call.convert(reranker, json_object, content, limits.max_candidates, port.charset)
                apis = [api := chosen(self._apis, body)]
                if isinstance(candidates := body.get(api.passages_field), list):
                    check_number_of_candidates(candidates, limits)
                parsed = await call.convert(reranker, api.parse, body)
                ignored = api.fields_without_effect(body)
                call.request = request = self._adapted(parsed, notes)
                if ignored:
                    notes.append(f"without effect here: {listed(ignored)}")
                call.request = request = await call.convert(reranker, request.checked, limits)
                async with port.until_hung_up(), call.answering() as (deadline_s, usage):
                    call.result = result = await request.rank(reranker, deadline_s, usage)
                trace = (result if isinstance(result, Ranking) else result.ranking).trace
                notes += warnings_of(trace)
                reply = call.reply(await call.convert(reranker, parsed.render, result, notes))
        except Exception as error:
            error.__traceback__ = None  # a traceback keeps the body in memory
            return _refusal(error, apis)
        headers = execution_headers(trace) | ({"x-rerank-warnings": header_value("; ".join(notes))} if notes else {})
        return HttpReply(reply, headers=headers)

    def _adapted(self, parsed: ParsedRequest, notes: list[str]) -> RerankRequest | SearchRequest:
        """Returns the request with aliases resolved, and without best-effort options that this service cannot follow.

        Adds a warning for the caller to `notes` for each change.
        """
        request, best_effort, options = parsed.request, parsed.best_effort, parsed.request.options
        if (name := self._resolved_name(options.model)) != options.model:
            notes.append(f"model {options.model[:_MAX_QUOTED_CHARS]!r} is an alias of {name}, which answers")
            options = replace(options, model=name)
        if "min_relevance" in best_effort and options.min_relevance is not None and not self._gives_relevance(name):
            notes.append(f"score_threshold has no effect, as model {name or 'default'} gives no relevance")
            options = replace(options, min_relevance=None)
        candidates = len(request.candidates) if isinstance(request, RerankRequest) else 0
        if "max_chunks_per_doc" in best_effort and candidates:
            most = max(1, self._calls.limits.max_candidates // candidates)
            if options.max_chunks_per_doc > most:
                notes.append(f"max_chunks_per_doc is {most}, the most for {candidates} documents")
                options = replace(options, max_chunks_per_doc=most)
        return request if options is request.options else replace(request, options=options)

    def _resolved_name(self, name: str) -> str:
        if not name or (name in self._names and name not in self._aliases):
            return name
        return self._aliases.get(name) or self._aliases.get(ANY_NAME, name)

    def _gives_relevance(self, name: str) -> bool:
        """True for a model with relevance, and for an unknown name, which the service refuses later."""
        found = (model for model in self._reranker.models() if model.name == name or (not name and model.is_default))
        return all(model.gives_relevance for model in found)


def _refusal(error: Exception, apis: Collection[RerankAPI]) -> HttpReply:
    """The reply to a failed request, with the fields of errors of all `apis`."""
    names = [api.passages_field for api in apis]
    problem = problem_of(error, names[0] if len(names) == 1 else "candidates")
    return HttpReply(json.dumps(error_body(apis, problem)).encode(), problem.status, problem.headers)


async def _send(request_id: str, reply: HttpReply, send: Send) -> None:
    """Sends the reply. Returns when the client has read all but the last 64 KiB, which are buffered."""
    headers = {
        "content-type": "application/json",
        "content-length": str(len(reply.body)),
        REQUEST_ID: request_id,
    } | dict(reply.headers)
    encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": int(reply.status), "headers": encoded})
    await send({"type": "http.response.body", "body": reply.body, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def header_value(text: str) -> str:
    """Returns a text as the value of a header: ASCII without control characters, at most 2,000 characters, stripped."""
    return json.dumps(text)[1:-1].replace("\x7f", r"\u007f")[:_MAX_HEADER_CHARS].strip()


def execution_headers(trace: Trace) -> dict[str, str]:
    """Returns headers about the model and its work. The times, in milliseconds, have TEI's names."""
    failure = {"x-rerank-failure": reason_of(trace.failure)} if trace.failure else {}
    return failure | {
        "x-rerank-model": header_value(trace.model),
        "x-rerank-strategy": header_value(trace.strategy),
        "x-rerank-completeness": trace.completeness.value,
        "x-total-time": f"{trace.total_ms:.0f}",
        "x-queue-time": f"{trace.queue_ms:.0f}",
        "x-tokenization-time": f"{trace.prepare_ms:.0f}",
        "x-inference-time": f"{trace.model_ms:.0f}",
    }


def warnings_of(trace: Trace) -> list[str]:
    """Returns warnings about a ranking: texts that were truncated or not read, and doubts about the model."""
    query = "the query was longer than the model can read and was truncated" if trace.query_truncated else ""
    cut = len(trace.truncated_doc_ids)
    documents = "1 document was" if cut == 1 else f"{cut} documents were"
    truncated = f"{documents} longer than the model can read and {documents.split()[-1]} truncated" if cut else ""
    return list(filter(None, (query, truncated, trace.reason, trace.model_warning)))
