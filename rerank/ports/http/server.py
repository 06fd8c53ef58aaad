"""HTTP servers, on the event loop of the gRPC server, and the application of the HTTP port: its paths and hosts."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import partial
from http import HTTPStatus
from importlib.metadata import entry_points
from typing import Any, cast

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from rerank.access.addresses import bound_socket
from rerank.access.tls import server_context
from rerank.config import HttpConfig, ServiceConfig, TLSConfig
from rerank.errors import RerankError
from rerank.ports.connections import connection_bounds
from rerank.ports.http.apis.table import APIs, error_in_all, rerank_apis  # _in_all
from rerank.ports.http.connections import BadRequest, BoundedListener, BoundedProtocol
from rerank.ports.http.description import description_routes, limited_by
from rerank.ports.http.endpoint import Endpoint
from rerank.ports.http.problem import RefusedByHttp, problem_of
from rerank.reranking.reranker import AsyncReranker
from rerank.service.call import OnEnd
from rerank.service.limits import CallsInFlight

#: The names of this machine, and the parts of the header Host.
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_HOST = re.compile(r"\[?(?P<name>[^\[\]@/]*?)\]?(:[0-9]*)?")
#: The answer to a request whose API is not known.
Refuse = Callable[[RerankError], Response]
#: Connections that asyncio accepts before it does something else; each takes some .1 ms.
_ACCEPTED_AT_A_TIME = 32
#: After the drain, clients have this long to close their connections; then they are closed.
_GRACE_S = 1


def create_app(reranker: AsyncReranker, calls: CallsInFlight, on_end: OnEnd, by_path: APIs) -> Starlette:
    """The HTTP application over an open reranker.

    Entry points of the group `rerank.http` add routes: functions of the reranker and of what `limited_by` makes.

    Args:
        reranker: answers the requests; its configuration has the limits and the aliases of models.
        calls: the limits of calls in flight, and the keys; gRPC has the same object.
        on_end: called when a request was answered.
        by_path: the APIs.
    """
    config = reranker.config
    endpoints = {path: Endpoint(apis, reranker, calls, on_end) for path, apis in by_path.items()}
    refuse = partial(_refusal, by_path)
    limited = limited_by(calls, refuse)
    own_hosts = []
    if config.http is not None and not (config.requires_authentication or config.insecure):
        own_hosts = [Middleware(_OwnHosts, config.http, refuse)]
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


class _OwnHosts:
    """Middleware that answers to the names of this machine and those that the settings allow, against DNS rebinding.

    An attacker can make a name of his point at this machine. His page could then read the port in a visitor's browser.

    Args:
        app: the application that gets the other requests.
        http: the settings of the port.
        refuse: answers a request with another name.
    """

    def __init__(self, app: ASGIApp, http: HttpConfig, refuse: Refuse) -> None:
        self._app, self._refuse = app, refuse
        names = (http.listen.rpartition(":")[0], *http.allowed_hosts)
        self._names = frozenset({*_LOOPBACK, *(name.strip("[]").lower() for name in names)})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = Headers(scope=scope).get("host", "")
        matched = _HOST.fullmatch(given)
        if matched and matched["name"].lower() in self._names:
            await self._app(scope, receive, send)
            return
        host = f"the host {given[:100]!r}" if given else "the header Host, which is missing,"
        message = (
            f"{host} is not one of {', '.join(sorted(self._names))}, which this port answers to; use one of these "
            "names, or have it started with --allowed-host NAME, or with keys (--keys FILE)"
        )
        await self._refuse(RefusedByHttp(HTTPStatus.BAD_REQUEST, message))(scope, receive, send)


class _PlainPaths:
    """Middleware that answers paths as clients join them, such as //v1/rerank and /v1/rerank/.

    Also after a scheme and a host, as proxies get paths (RFC 9112, 3.2.2).
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if "//" in path or path[-1:] == "/" or path[:1] != "/":
            parts = re.sub(r"^https?://[^/]*", "", path).split("/")
            scope = {**scope, "path": "/" + "/".join(filter(None, parts))}
        await self._app(scope, receive, send)


def _refusal(by_path: APIs, error: RerankError) -> Response:
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


class _Server(uvicorn.Server):
    """A uvicorn server that leaves signals to its process. `accepting` is set when it accepts connections."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.accepting = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.accepting.set()

    def end_connections(self) -> None:
        """Ends the open connections at once, also those whose clients have not read their answers."""
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def running_http(
    reranker: AsyncReranker, calls: CallsInFlight, on_end: OnEnd, wrap_app: Callable[[ASGIApp], ASGIApp]
) -> AbstractAsyncContextManager[str]:
    """Serves an open reranker at the address `http.listen` of its configuration; see `serving`.

    Args:
        reranker: answers the requests.
        calls: the calls in flight, with their limits and keys; shared with gRPC.
        on_end: observes each call that has ended.
        wrap_app: wraps the application, for example to trace its requests.
    """
    config = reranker.config
    assert config.http is not None, "this is a bug: without settings of the HTTP port there is none to open"
    by_path = rerank_apis(reranker.cut)
    app = wrap_app(create_app(reranker, calls, on_end, by_path))
    return serving(app, config.http.listen, "--http", config, config.tls, partial(_bad_request, by_path))


def _bad_request(by_path: APIs, message: str) -> bytes:
    return json.dumps(error_in_all(by_path, problem_of(RefusedByHttp(HTTPStatus.BAD_REQUEST, message)))).encode()


@asynccontextmanager
async def serving(
    app: ASGIApp, listen: str, option: str, config: ServiceConfig, tls: TLSConfig | None, bad_request: BadRequest
) -> AsyncIterator[str]:
    """Serves an application; yields its address as HOST:PORT.

    When the block ends, it accepts no more connections, and closes those without a call in flight.

    Args:
        app: answers the requests.
        listen: HOST:PORT; port 0 chooses a free one.
        option: sets `listen`, in errors.
        config: has the limits of connections.
        tls: the certificate; None for plain text.
        bad_request: see `BoundedProtocol`.

    Raises:
        ConfigError: the address cannot be bound, or a file of the TLS settings cannot be used.
    """
    new = partial(BoundedListener, bounds=connection_bounds(config))
    listening = bound_socket(listen, option, new)  # asyncio sets TCP_NODELAY if it knows the protocol
    port = listening.getsockname()[1]
    settings = uvicorn.Config(
        app,
        http=cast(Any, partial(BoundedProtocol, config.limits.max_transfer_s, bad_request, listening)),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        log_level="error",  # its warnings are about what clients sent, as often as they like
        server_header=False,
        proxy_headers=False,
        backlog=_ACCEPTED_AT_A_TIME,
        timeout_graceful_shutdown=10 * _GRACE_S,  # never passes: the connections end before
    )
    settings.load()
    settings.ssl = None if tls is None else server_context(tls)
    server = _Server(settings)
    running = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        await server.accepting.wait()
        yield f"{listen.rpartition(':')[0]}:{port}"
    finally:
        server.should_exit = True
        asyncio.get_running_loop().call_later(_GRACE_S, server.end_connections)
        await running
