"""The endpoint of a path: it takes requests of the APIs of the path, and answers in their forms, with headers."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from http import HTTPStatus

from starlette.types import Receive, Scope, Send

from rerank.errors import InvalidRequest, reason_of
from rerank.ports.connections import end_connection_of
from rerank.ports.http.apis.api import ByField, ParsedRequest, RerankAPI, chosen, error_body, fields_without_effect
from rerank.ports.http.body import UTF_8, json_object
from rerank.ports.http.problem import RefusedByHttp, problem_of
from rerank.readers.rows import listed
from rerank.reranking.reranker import AsyncReranker
from rerank.service.call import REQUEST_ID, DoneNotifier, OnEnd, request_id_of
from rerank.service.limits import SMALL_MESSAGE, CallsInFlight
from rerank.service.requests import RerankRequest, SearchRequest, check_number_of_candidates
from rerank.types import Ranking, Trace

#: The alias of every name that neither is a model nor has another alias.
ANY_NAME = "*"
_MAX_QUOTED_CHARS = 100
#: Proxies refuse answers with longer headers.
_MAX_HEADER_CHARS = 2000
#: The type of the body.
CONTENT_TYPE = "application/json"
#: Charsets that a content type may name, and Python's names of them.
_CHARSETS = {
    "utf-8": "utf-8",
    "utf8": "utf-8",
    "us-ascii": "ascii",
    "iso-8859-1": "latin-1",
    "latin-1": "latin-1",
    "latin1": "latin-1",
    "windows-1252": "cp1252",
    "utf-16": "utf-16",
    "utf-16le": "utf-16-le",
    "utf-16be": "utf-16-be",
}
#: Headers that programs send a key in, apart from Authorization.
_KEY_HEADERS = ("api-key", "x-api-key")
TIMEOUT_HEADER = "x-request-timeout-ms"
_MILLISECONDS = re.compile(r"[1-9][0-9]*")


class HungUp(asyncio.CancelledError):
    """The client has hung up, which cancels its call."""


class HttpCall(DoneNotifier):
    """A request, see `rerank.service.call.PortCall`.

    Args:
        scope: the ASGI scope of the request.
        receive: the ASGI function that receives the body.
        max_bytes: limit on the size of the body.
    """

    def __init__(self, scope: Scope, receive: Receive, max_bytes: int = 0) -> None:
        host, port = scope.get("client") or ("unknown", 0)
        #: In the form of gRPC's, such as "http:127.0.0.1:40000" or "http:[::1]:40000".
        self.peer = f"http:[{host}]:{port}" if ":" in host else f"http:{host}:{port}"
        self._port: int = scope["server"][1]
        self._headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        #: The first value of each header.
        self._first = dict(reversed(self._headers))
        self.request_id = request_id_of(self._headers)
        #: The charset of the body, which `read` takes from the headers.
        self.charset = UTF_8
        self.deadline_s = math.inf
        self._arrived_s = asyncio.get_running_loop().time()
        self._receive = receive
        self._max_bytes = max_bytes

    async def read(self, place: AbstractAsyncContextManager[None]) -> bytearray:
        """Receives the body. It is not copied, as 16 MB would take some ms of the event loop.

        Args:
            place: taken for a body that is not small, so that small ones never wait.

        Raises:
            HungUp: the client has hung up.
            RefusedByHttp: the headers name another form than JSON, or the body is too large.
            InvalidRequest: the header X-Request-Timeout-Ms is not a number of milliseconds.
        """
        self._check_headers()
        body = bytearray()
        async with AsyncExitStack() as places:
            is_small = True
            while True:
                if is_small and len(body) > SMALL_MESSAGE:
                    await places.enter_async_context(place)
                    is_small = False
                message = await self._receive()
                if message["type"] == "http.disconnect":
                    raise HungUp
                body += message.get("body", b"")
                if len(body) > self._max_bytes:
                    raise self._too_large(f"{len(body)} or more")
                if not message.get("more_body", False):
                    return body

    @asynccontextmanager
    async def until_hung_up(self) -> AsyncIterator[None]:
        """Runs a block that ends when the client hangs up. Follows `read`. Raises: HungUp."""
        block = asyncio.timeout(None)
        watching = asyncio.create_task(self._end_when_hung_up(block))
        try:
            async with block:
                yield
        except TimeoutError as error:
            if not block.expired():
                raise
            raise HungUp from error
        finally:
            watching.cancel()

    async def _end_when_hung_up(self, block: asyncio.Timeout) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        block.reschedule(0)

    @property
    def authorization(self) -> str | None:
        """The key as gRPC's clients send it, whichever header and form it came in."""
        given = [value for name, value in self._headers if name == "authorization"]
        given = given or [self._first[name] for name in _KEY_HEADERS if name in self._first][:1]
        if len(given) != 1:
            return None
        return given[0] if " " in given[0] else f"Bearer {given[0]}"

    def hang_up(self) -> None:
        """Ends the client's connection."""
        end_connection_of(self._port, self.peer)

    def _check_headers(self) -> None:
        """Reads the deadline. Refuses a body that is not JSON, or too large, before it is received."""
        self.deadline_s = self._arrived_s + _timeout_s(self._first.get(TIMEOUT_HEADER))
        given = self._first.get("content-type", "")
        content_type, *parameters = given.lower().replace('"', "").split(";")
        if content_type.strip() != CONTENT_TYPE:
            raise _unsupported(f"the content type is {given[:100]!r}; send {CONTENT_TYPE}")
        for name, _, value in (parameter.strip().partition("=") for parameter in parameters):
            if name == "charset":
                if value not in _CHARSETS:
                    raise _unsupported(f"the charset is {value[:100]!r}; send one of {', '.join(_CHARSETS)}")
                self.charset = _CHARSETS[value]
        encoding = self._first.get("content-encoding", "identity")
        if encoding.lower() != "identity":
            raise _unsupported(f"the content encoding is {encoding!r}; send the body without compression")
        length = self._first.get("content-length", "0")
        if length.isdecimal() and int(length) > self._max_bytes:
            raise self._too_large(length)

    def _too_large(self, size: str) -> RefusedByHttp:
        message = f"the request is {size} bytes long, more than the limit of {self._max_bytes}; send fewer passages"
        return RefusedByHttp(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message)


def _unsupported(message: str) -> RefusedByHttp:
    return RefusedByHttp(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, message)


def _timeout_s(header: str | None) -> float:
    if header is None:
        return math.inf
    if not _MILLISECONDS.fullmatch(header):
        raise InvalidRequest("X-Request-Timeout-Ms", f"{header[:50]!r} is not a number of milliseconds from 1")
    return float(header) / 1000  # infinite for hundreds of digits, as without the header


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
        calls: the calls in flight, and the keys; gRPC has the same object.
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
            port.finish()

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
                call.request = request = self._adapted(parsed, notes)
                if ignored := fields_without_effect(api.request, body):
                    notes.append(f"without effect here: {listed(ignored)}")
                call.request = request = await call.convert(reranker, request.checked, limits)
                async with port.until_hung_up(), call.answering() as (deadline_s, share):
                    call.result = result = await request.rank(reranker, deadline_s, share)
                trace = (result if isinstance(result, Ranking) else result.ranking).trace
                notes += warnings_of(trace)
                reply = call.reply(await call.convert(reranker, parsed.render, result, notes))
        except Exception as error:
            error.__traceback__ = None  # it keeps the body
            return _refusal(error, apis)
        headers = execution_headers(trace) | ({"x-rerank-warnings": header_value("; ".join(notes))} if notes else {})
        return HttpReply(reply, headers=headers)

    def _adapted(self, parsed: ParsedRequest, notes: list[str]) -> RerankRequest | SearchRequest:
        """The request as this service can answer it; adds a note on each change."""
        request, best_effort, options = parsed.request, parsed.best_effort, parsed.request.options
        if (name := self._meant(options.model)) != options.model:
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

    def _meant(self, name: str) -> str:
        if not name or (name in self._names and name not in self._aliases):
            return name
        return self._aliases.get(name) or self._aliases.get(ANY_NAME, name)

    def _gives_relevance(self, name: str) -> bool:
        """True also for a name that no model has, because the service refuses such a request later."""
        found = (model for model in self._reranker.models() if model.name == name or (not name and model.is_default))
        return all(model.gives_relevance for model in found)


def _refusal(error: Exception, apis: Collection[RerankAPI]) -> HttpReply:
    """The error in the fields of these APIs."""
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
    """A text as the value of a header: ASCII without control characters, not too long, and no space at its ends."""
    return json.dumps(text)[1:-1].replace("\x7f", r"\u007f")[:_MAX_HEADER_CHARS].strip()


def execution_headers(trace: Trace) -> dict[str, str]:
    """Headers about the model and its work. The times, in milliseconds, have TEI's names."""
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
    """Warnings about a ranking: texts that were truncated or not read, and doubts about the model."""
    query = "the query was longer than the model can read and was truncated" if trace.query_truncated else ""
    cut = len(trace.truncated_doc_ids)
    documents = "1 document was" if cut == 1 else f"{cut} documents were"
    truncated = f"{documents} longer than the model can read and {documents.split()[-1]} truncated" if cut else ""
    return [note for note in (query, truncated, trace.reason, trace.model_warning) if note]
