"""The page /metrics, for Prometheus, on a port of its own."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rerank.config import ServiceConfig
from rerank.ports.http.server import serving


def running_metrics(registry: CollectorRegistry, config: ServiceConfig) -> AbstractAsyncContextManager[str]:
    """Serves the metrics of a registry, without keys and TLS, at the address of the settings; see `serving`."""
    listen = config.telemetry.metrics
    assert listen is not None, "this is a bug: without an address of the metrics there is no port to open"

    async def metrics(_: Request) -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    app = Starlette(routes=[Route("/metrics", metrics)])
    return serving(app, listen, "telemetry.metrics", config, None, str.encode)
