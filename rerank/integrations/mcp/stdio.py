"""MCP over standard input and output. These carry nothing else, so whatever is printed goes to standard error."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from mcp.server.stdio import stdio_server

from rerank.access.credentials import Credentials
from rerank.client.client import AsyncRerankClient
from rerank.client.retries import DEFAULT_ATTEMPTS
from rerank.config import ServiceConfig
from rerank.integrations.mcp.tools import ToolAnswer, ToolRequest, ToolService, tool_answer, tool_server
from rerank.service.in_flight import CallsInFlight
from rerank.v1 import rerank_pb2 as pb

log = logging.getLogger(__name__)


async def serve_models(config: ServiceConfig) -> None:
    """Loads the models and the index of a configuration, and serves them until standard input ends.

    Raises:
        ConfigError, CheckpointError, IndexMismatch: see `load_reranker`.
    """
    with _nothing_on_stdout():
        from rerank.integrations.mcp.local import local_service  # imports torch, as the next does
        from rerank.reranking.reranker import load_reranker

        reranker = load_reranker(config)
    log_call = partial(logging.getLogger("rerank.calls").info, "%s")
    async with reranker:
        await _serve(local_service(reranker, CallsInFlight(config.limits), log_call))


async def serve_target(target: str, credentials: Credentials) -> None:
    """Serves the tools of the service at an address. Raises: see `RerankClient` and `list_models`."""
    async with AsyncRerankClient(target, credentials, DEFAULT_ATTEMPTS) as client:
        await _serve(await _remote_service(client))


async def _remote_service(client: AsyncRerankClient) -> ToolService:
    """The service that a client calls. Raises: ServiceError if it does not answer, or refuses the key."""
    described = await client.list_models()

    async def ask(request: ToolRequest, _: Any) -> ToolAnswer:
        fields = {field.name: value for field, value in request.ListFields()}
        if isinstance(request, pb.SearchRequest):
            return tool_answer(await client.search(**fields))
        return tool_answer(await client.rerank(fields.pop("query", ""), fields.pop("candidates", ()), **fields))

    return ToolService(ask, lambda: described, lambda: None)


async def _serve(service: ToolService) -> None:
    server = tool_server(service)
    async with stdio_server() as (requests, answers):
        log.info("waiting for the requests of an MCP client on standard input")
        await server.run(requests, answers, server.create_initialization_options())


@contextmanager
def _nothing_on_stdout() -> Iterator[None]:
    """Sends to standard error what libraries and the JVM print in the block."""
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)
