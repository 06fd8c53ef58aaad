"""The HTTP server of /metrics. Each connection has a thread, so their number is bounded."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

from rerank.errors import ConfigError

#: Connections at the same time; a further one takes the place of the oldest.
_MAX_CONNECTIONS = 100
#: Seconds without data after which a connection ends.
_TIMEOUT_S = 10
#: Seconds between two looks at whether the server has to end, which waits for the next one.
_POLL_S = 0.05


class _MetricsServer(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = _MAX_CONNECTIONS  # by default 5: each further client tries again after a second

    def __init__(self, address: tuple[str, int], handler: type[WSGIRequestHandler]) -> None:
        self.address_family = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0][0]
        self._open: dict[socket.socket, None] = {}  # the oldest first
        self._lock = threading.Lock()
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serves a connection on a thread. If there are too many, the oldest one ends: an answer takes milliseconds, so
        it has sent no request until now."""
        with self._lock:
            self._open[request] = None
            if len(self._open) > _MAX_CONNECTIONS:
                oldest = next(iter(self._open))
                del self._open[oldest]
                with suppress(OSError):  # its client has closed it
                    oldest.shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                self._open.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Leaves out the traceback of a client that hung up."""


class _Handler(WSGIRequestHandler):
    timeout = _TIMEOUT_S

    def log_message(self, *args: Any) -> None:
        """Leaves out the line of each request."""


@contextmanager
def metrics_server(address: str, registry: CollectorRegistry) -> Iterator[str]:
    """Serves /metrics at HOST:PORT, on a thread, and yields the address that was bound.

    Raises:
        ConfigError: the address cannot be bound.
    """
    host, _, port = address.rpartition(":")
    try:
        server = make_server(host.strip("[]"), int(port), make_wsgi_app(registry), _MetricsServer, _Handler)
    except (OSError, OverflowError, ValueError) as error:
        raise ConfigError(
            f"telemetry.metrics: cannot listen on {address}: {error}; choose another HOST:PORT"
        ) from error
    thread = threading.Thread(target=partial(server.serve_forever, _POLL_S), name="metrics", daemon=True)
    thread.start()
    try:
        yield f"{host}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
