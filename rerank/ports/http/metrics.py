"""The page /metrics, for Prometheus, on a port of its own."""

from __future__ import annotations

import asyncio
import time
from contextlib import AbstractAsyncContextManager

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rerank.config import ServiceConfig
from rerank.ports.http.server import serving

#: A page follows the one before after this many times its own duration, so that readers take a tenth of the event loop.
_PAUSE = 9


def running_metrics(registry: CollectorRegistry, config: ServiceConfig) -> AbstractAsyncContextManager[str]:
    """Serves the metrics of a registry, without keys and TLS, at the address of the settings; see `serving`."""
    listen = config.telemetry.metrics
    assert listen is not None, "this is a bug: without an address of the metrics there is no port to open"

    turn = asyncio.Lock()

    async def metrics(_: Request) -> Response:
        async with turn:
            start_s = time.perf_counter()
            page = generate_latest(registry)
            await asyncio.sleep(_PAUSE * (time.perf_counter() - start_s))
        return Response(page, media_type=CONTENT_TYPE_LATEST)

    app = Starlette(routes=[Route("/metrics", metrics)])
    return serving(app, listen, "telemetry.metrics", config, None, str.encode)
