"""The page /metrics, for Prometheus, on a separate port."""

from __future__ import annotations

import asyncio
import time
from contextlib import AbstractAsyncContextManager

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rerank.config import ServiceConfig
from rerank.ports.http.hosts import OwnHosts
from rerank.ports.http.problem import RefusedByHttp
from rerank.ports.http.server import serving

#: Pause after a page, as a multiple of the time that it took, so that readers take a tenth of the event loop.
_PAUSE = 9


class _Pages:
    """Writes pages of the metrics. All callers that wait at the same time get the same page."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._pause_end_s = 0.0
        self._next: asyncio.Task[bytes] | None = None

    async def next(self) -> bytes:
        """Returns the next page, which is written after this call."""
        self._next = self._next or asyncio.create_task(self._write())
        return await asyncio.shield(self._next)  # other callers may wait for it, too

    async def _write(self) -> bytes:
        await asyncio.sleep(self._pause_end_s - time.perf_counter())
        self._next, start_s = None, time.perf_counter()
        page = generate_latest(self._registry)
        end_s = time.perf_counter()
        self._pause_end_s = end_s + _PAUSE * (end_s - start_s)
        return page


def running_metrics(registry: CollectorRegistry, config: ServiceConfig) -> AbstractAsyncContextManager[str]:
    """Serves the metrics of a registry, without keys and TLS, at the address of the settings; see `serving`.

    Because callers need no key, only requests for known hosts are answered, see `OwnHosts`, unless the service is
    `insecure`.
    """
    listen = config.telemetry.metrics
    assert listen is not None, "this is a bug: without an address of the metrics there is no port to open"

    pages = _Pages(registry)

    async def metrics(request: Request) -> Response:
        page = await pages.next()  # for other paths, too, so that requests for them wait as well
        if request.url.path != "/metrics":
            return Response("the metrics are at /metrics", 404)
        return Response(page, media_type=CONTENT_TYPE_LATEST)

    own_hosts = []
    if not config.insecure:
        own_hosts = [Middleware(OwnHosts, listen, config.http.allowed_hosts if config.http else (), _refusal)]
    app = Starlette(routes=[Route("/{path:path}", metrics)], middleware=own_hosts)
    return serving(app, listen, "telemetry.metrics", config, None, str.encode)


def _refusal(error: RefusedByHttp) -> Response:
    return Response(str(error), error.status)
