"""The HTTP server: uvicorn on the event loop of the gRPC service, with bounds on slow connections."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from rerank.config.network import TLSConfig
from rerank.errors import ConfigError
from rerank.http.app import create_app
from rerank.http.call import HttpCall
from rerank.http.listener import BoundedListener
from rerank.http.tls import server_context
from rerank.reranker import AsyncReranker
from rerank.service.connection_bounds import ConnectionBounds, connection_bounds
from rerank.service.connections import end_connection_of
from rerank.service.servicer import CallsInFlight, OnEnd

#: Connections that asyncio accepts before it does something else; each takes some .1 ms.
_ACCEPTED_AT_A_TIME = 32
#: After the drain, clients have this long to close their connections; then they are closed.
_GRACE_S = 1


class _Server(uvicorn.Server):
    """A server whose process handles signals itself. `accepting` is set when it accepts connections."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.accepting = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.accepting.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _protocol(max_transfer_s: float) -> type[H11Protocol]:
    """uvicorn's HTTP/1.1, with a limit on the time in which a connection sends the headers of its next request."""

    class Protocol(H11Protocol):
        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._expect_request()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.cycle is not None and not self.cycle.response_complete:
                self._stop_timer()

        def on_response_complete(self) -> None:
            self._expect_request()
            super().on_response_complete()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_timer()
            super().connection_lost(exc)

        def _expect_request(self) -> None:
            self._stop_timer()
            self._timer = self.loop.call_later(max_transfer_s, self.transport.abort)

        def _stop_timer(self) -> None:
            if self._timer is not None:
                self._timer.cancel()

        def send_400_response(self, msg: str) -> None:
            """Answers bytes that are no HTTP, with the fields of all dialects."""
            body = json.dumps({"message": msg, "detail": msg, "error": msg, "error_type": "Validation"}).encode()
            headers = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
            response = h11.Response(status_code=400, headers=list(headers.items()))
            for event in (response, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
            self.transport.close()

    return Protocol


@asynccontextmanager
async def running_http(
    reranker: AsyncReranker, calls: CallsInFlight, on_end: OnEnd, wrap_app: Callable[[ASGIApp], ASGIApp]
) -> AsyncIterator[str]:
    """Serves an open reranker at the address `http.listen` of its configuration; yields that address as HOST:PORT.

    When the block ends, no new connections are accepted, and those without a call in flight are closed.

    Args:
        reranker: answers the requests.
        calls: limits of calls in flight, and the keys; shared with gRPC.
        on_end: called when a request has ended.
        wrap_app: application → the one to serve, such as one that traces its requests.

    Raises:
        ConfigError: the address cannot be bound, or a file of the TLS settings cannot be used.
    """
    config = reranker.config
    assert config.http is not None, "this is a bug: without settings of the HTTP port there is none to open"
    listening = _bind(config.http.listen, connection_bounds(config))
    port = listening.getsockname()[1]
    _end_unread_answers(calls, port)
    app = wrap_app(create_app(reranker, calls, on_end))
    server = _Server(_settings(app, _protocol(config.limits.max_transfer_s), config.tls))
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        await server.accepting.wait()
        yield f"{config.http.listen.rpartition(':')[0]}:{port}"
    finally:
        server.should_exit = True
        await serving


def _settings(app: ASGIApp, protocol: type[H11Protocol], tls: TLSConfig | None) -> uvicorn.Config:
    settings = uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=_ACCEPTED_AT_A_TIME,
        timeout_graceful_shutdown=_GRACE_S,
    )
    settings.load()
    settings.ssl = None if tls is None else server_context(tls)
    return settings


def _end_unread_answers(calls: CallsInFlight, port: int) -> None:
    """Lets `calls` end the connections of HTTP clients, too, that do not read an answer."""
    end_grpc = calls.on_unread_answer

    def end(peer: str) -> None:
        if peer.startswith(HttpCall.PEER):
            end_connection_of(port, peer)
        else:
            end_grpc(peer)

    calls.on_unread_answer = end


def _bind(listen: str, bounds: ConnectionBounds) -> socket.socket:
    host, _, port = listen.rpartition(":")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
        listening = BoundedListener(family, kind, protocol, bounds)  # asyncio sets TCP_NODELAY if it knows the protocol
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except (OSError, OverflowError, ValueError) as error:
        raise ConfigError(f"cannot listen on {listen}: {error}; choose another --http-listen HOST:PORT") from error
    return listening
