"""HTTP servers: uvicorn on the event loop of the gRPC server, with bounds on slow connections."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import partial
from http import HTTPStatus
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp

from rerank.access.addresses import bound_sockets
from rerank.access.tls import server_context
from rerank.config import ServiceConfig, TLSConfig
from rerank.ports.connections import max_connections
from rerank.ports.http.apis.table import APIs, error_in_all, rerank_apis
from rerank.ports.http.app import create_app
from rerank.ports.http.connections import BadRequest, BoundedListener, BoundedProtocol
from rerank.ports.http.problem import RefusedByHttp, problem_of
from rerank.reranking.reranker import AsyncReranker
from rerank.service.call import OnEnd
from rerank.service.limits import CallsInFlight

#: Number of connections that asyncio accepts in one turn of the event loop; each takes some .1 ms.
_ACCEPTED_AT_A_TIME = 32
#: Seconds after the drain until the server closes connections that clients have not closed.
_GRACE_S = 1


class _Server(uvicorn.Server):
    """A uvicorn server that leaves signals to its process. `accepting` is set when it accepts connections."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.accepting = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.accepting.set()

    def end_connections(self) -> None:
        """Ends all open connections at once, even if clients have not read their answers."""
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
        reranker: the reranker, with its configuration.
        calls: the calls in flight, with their limits and keys; shared with gRPC.
        on_end: called when a call has ended.
        wrap_app: application → the application that is served, which may trace requests.
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

    When the block ends, the server accepts no more connections, and closes connections without a call in flight.

    Args:
        app: the application that answers requests.
        listen: HOST:PORT; port 0 for any free port.
        option: the command-line option that sets `listen`, for errors.
        config: settings of the service, whose limits of connections apply.
        tls: the certificate; None for plain text.
        bad_request: see `BoundedProtocol`.

    Raises:
        ConfigError: the address cannot be bound, or a file of the TLS settings cannot be used.
    """
    new = partial(BoundedListener, max_connections=max_connections(config))
    listening = bound_sockets(listen, option, new)  # asyncio sets TCP_NODELAY if it knows the protocol
    port = listening[0].getsockname()[1]
    settings = uvicorn.Config(
        app,
        http=cast(Any, partial(BoundedProtocol, config.limits.max_transfer_s, bad_request, listening)),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        log_level="error",  # clients can cause any number of warnings
        server_header=False,
        proxy_headers=False,
        backlog=_ACCEPTED_AT_A_TIME,
        timeout_graceful_shutdown=10 * _GRACE_S,  # never reached: the connections end before
    )
    settings.load()
    settings.ssl = None if tls is None else server_context(tls)
    server = _Server(settings)
    running = asyncio.create_task(server.serve(sockets=cast(list[socket.socket], listening)))
    try:
        await server.accepting.wait()
        yield f"{listen.rpartition(':')[0]}:{port}"
    finally:
        server.should_exit = True
        asyncio.get_running_loop().call_later(_GRACE_S, server.end_connections)
        await running
