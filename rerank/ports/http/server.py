"""The HTTP server: uvicorn on the event loop of the gRPC server, with bounds on slow connections."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from http import HTTPStatus
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from rerank.access.tls import server_context
from rerank.config import TLSConfig
from rerank.errors import ConfigError
from rerank.ports.connection_bounds import HANDSHAKE_S, ConnectionBounds, connection_bounds
from rerank.ports.http.app import FurtherRoutes, create_app
from rerank.ports.http.dialects.table import Dialects, dialects, error_in_all
from rerank.ports.http.listener import BoundedListener
from rerank.ports.http.problem import RefusedByHttp, problem_of
from rerank.ports.http.protocol import protocol_with
from rerank.reranking.reranker import AsyncReranker
from rerank.service.call import OnEnd
from rerank.service.in_flight import CallsInFlight

#: Connections that asyncio accepts before it does something else; each takes some .1 ms.
_ACCEPTED_AT_A_TIME = 32
#: After the drain, clients have this long to close their connections; then they are closed.
_GRACE_S = 1


class _HTTPServer(uvicorn.Server):
    """A uvicorn server that leaves signals to its process. `accepting` is set when it accepts connections.

    Args:
        config: uvicorn's settings.
        handshake_s: the time for the start and for the end of TLS on a connection, in seconds.
    """

    def __init__(self, config: uvicorn.Config, handshake_s: float) -> None:
        super().__init__(config)
        self.accepting = asyncio.Event()
        self._tls = {"ssl_handshake_timeout": handshake_s, "ssl_shutdown_timeout": handshake_s} if config.ssl else {}

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accepts connections at these sockets. Uvicorn's own method has no setting for the times of TLS."""
        config = self.config
        make: Any = config.http_protocol_class
        protocol = partial(make, config=config, server_state=self.server_state, app_state={})
        create = partial(asyncio.get_running_loop().create_server, ssl=config.ssl, backlog=config.backlog, **self._tls)
        self.servers = [await create(protocol, sock=each) for each in sockets or ()]
        self.started = True
        self.accepting.set()

    def end_connections(self) -> None:
        """Ends the open connections at once, also those whose clients have not read their answers."""
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def running_http(
    reranker: AsyncReranker,
    calls: CallsInFlight,
    on_end: OnEnd,
    wrap_app: Callable[[ASGIApp], ASGIApp],
    further: Sequence[FurtherRoutes],
) -> AsyncIterator[str]:
    """Serves an open reranker at the address `http.listen` of its configuration; yields that address as HOST:PORT.

    When the block ends, it accepts no more connections, and closes those without a call in flight.

    Args:
        reranker: answers the requests.
        calls: the calls in flight, with their limits and keys; shared with gRPC.
        on_end: observes each call that has ended.
        wrap_app: wraps the application, for example to trace its requests.
        further: makes routes of others on this port.

    Raises:
        ConfigError: the address cannot be bound, or a file of the TLS settings cannot be used.
    """
    config = reranker.config
    assert config.http is not None, "this is a bug: without settings of the HTTP port there is none to open"
    listening = _bind(config.http.listen, connection_bounds(config))
    port = listening.getsockname()[1]
    by_path = dialects(reranker.cut)
    app = wrap_app(create_app(reranker, calls, on_end, by_path, further))
    protocol = protocol_with(config.limits.max_transfer_s, partial(_bad_request, by_path), listening)
    settings = _settings(app, protocol, config.tls)
    server = _HTTPServer(settings, HANDSHAKE_S)
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        await server.accepting.wait()
        yield f"{config.http.listen.rpartition(':')[0]}:{port}"
    finally:
        server.should_exit = True
        asyncio.get_running_loop().call_later(_GRACE_S, server.end_connections)
        await serving


def _bad_request(by_path: Dialects, message: str) -> bytes:
    return json.dumps(error_in_all(by_path, problem_of(RefusedByHttp(HTTPStatus.BAD_REQUEST, message)))).encode()


def _settings(app: ASGIApp, protocol: type[H11Protocol], tls: TLSConfig | None) -> uvicorn.Config:
    settings = uvicorn.Config(
        app,
        http=protocol,
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
    return settings


def _bind(listen: str, bounds: ConnectionBounds) -> BoundedListener:
    host, _, port = listen.rpartition(":")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
        listening = BoundedListener(family, kind, protocol, bounds)  # asyncio sets TCP_NODELAY if it knows the protocol
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except (OSError, OverflowError, ValueError) as error:
        raise ConfigError(f"cannot listen on {listen}: {error}; choose another --http HOST:PORT") from error
    return listening
