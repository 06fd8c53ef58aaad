"""The route of MCP on the HTTP port, if the extra `mcp` is installed."""

from __future__ import annotations

from importlib.util import find_spec

from starlette.routing import BaseRoute, Route

from rerank.ports.http.app import HttpService


def mcp_routes(service: HttpService) -> list[BaseRoute]:
    """Makes the route."""
    if find_spec("mcp") is None:
        return []
    from rerank.integrations.mcp.http import McpEndpoint

    return [Route("/mcp", McpEndpoint(service.reranker, service.calls, service.on_end), methods=["POST"])]
