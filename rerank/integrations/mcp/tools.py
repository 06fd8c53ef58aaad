"""The tools `search` and `rerank` of the MCP server: their descriptions, their arguments and their answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import mcp.types as types
from mcp.server import Server, ServerRequestContext
from mcp.server.stdio import stdio_server

from rerank import __version__
from rerank.access.credentials import Credentials
from rerank.client.client import AsyncRerankClient
from rerank.client.retries import DEFAULT_ATTEMPTS
from rerank.errors import InvalidRequest, NotFound, RerankError
from rerank.names import DEFAULT_FIRST_STAGE, FirstStage
from rerank.v1 import rerank_pb2 as pb

#: Number of results of a search by default, low because a language model reads all of them.
_SEARCH_TOP_N = 10
_CANDIDATE = {
    "type": "object",
    "properties": {
        "doc_id": {"type": "string", "description": "Default: its position in the list, from 0."},
        "text": {"type": "string"},
        "title": {"type": "string"},
        "score": {"type": "number", "description": "The first stage's score; give it to all candidates or to none."},
    },
    "required": ["text"],
}
#: Arguments of both tools.
_SHARED_ARGUMENTS = {
    "query": {"type": "string"},
    "model": {"type": "string"},
    "instruction": {"type": "string", "description": "Says what counts as relevant, for models that read one."},
}
#: Name of a tool → its arguments, as JSON schemas.
_ARGUMENTS: dict[str, dict[str, dict[str, Any]]] = {
    "rerank": _SHARED_ARGUMENTS
    | {
        "candidates": {"type": "array", "minItems": 1, "items": {"anyOf": [{"type": "string"}, _CANDIDATE]}},
        "top_n": {"type": "integer", "minimum": 0, "description": "Number of results. Default: 0, for all."},
        "ordered": {
            "type": "boolean",
            "description": "Whether the candidates are in the order of a search, best first. Default: false.",
        },
    },
    "search": _SHARED_ARGUMENTS
    | {
        "top_n": {"type": "integer", "minimum": 0, "description": f"Results. Default: {_SEARCH_TOP_N}; 0: all."},
        "depth": {"type": "integer", "minimum": 1, "description": "Candidates that are reranked. Default: 100."},
        "first_stage": {"type": "string", "enum": [*FirstStage], "description": f"Default: {DEFAULT_FIRST_STAGE}."},
    },
}


async def serve_tools(target: str, credentials: Credentials) -> None:
    """Serves the tools of the service at an address over standard input and output, until the input ends.

    Raises: see `AsyncRerankClient` and `AsyncRerankClient.list_models`.
    """
    async with AsyncRerankClient(target, credentials, DEFAULT_ATTEMPTS) as client:
        server = await tool_server(client)
        async with stdio_server() as (requests, answers):
            await server.run(requests, answers, server.create_initialization_options())


async def tool_server(client: AsyncRerankClient) -> Server[Any]:
    """An MCP server with the tools. It offers the search if the service has an index. Raises: ServiceError."""
    tools = _tools(await client.list_models())

    async def list_tools(_: ServerRequestContext[Any], __: object) -> types.ListToolsResult:
        return types.ListToolsResult(tools=tools)

    async def call_tool(_: ServerRequestContext[Any], call: types.CallToolRequestParams) -> types.CallToolResult:
        try:
            answer = _answer(await _request(client, call.name, call.arguments or {}))
        except RerankError as error:
            content = types.TextContent(type="text", text=f"{error.grpc_status}: {error}")
            return types.CallToolResult(content=[content], is_error=True)
        text = types.TextContent(type="text", text=json.dumps(answer, ensure_ascii=False))
        return types.CallToolResult(content=[text], structured_content=answer)

    return Server("rerank", version=__version__, on_list_tools=list_tools, on_call_tool=call_tool)


def _tools(described: pb.ListModelsResponse) -> list[types.Tool]:
    names = [model.name for model in described.models if not model.problem]
    model = {"type": "string", "enum": names, "description": f"Default: {names[0] if names else 'none'}."}
    tools = [_tool("rerank", "Orders passages by their relevance to a query, best first.", model, "candidates")]
    if described.HasField("index"):
        index = described.index
        text = f"Finds the passages of {index.collection} ({index.passages:,} passages) that answer a query, reranked."
        tools.insert(0, _tool("search", text, model))
    return tools


def _tool(name: str, description: str, model: dict[str, Any], *required: str) -> types.Tool:
    schema = {"type": "object", "properties": _ARGUMENTS[name] | {"model": model}, "required": ["query", *required]}
    read_only = types.ToolAnnotations(read_only_hint=True, open_world_hint=False)
    return types.Tool(name=name, description=description, input_schema=schema, annotations=read_only)


async def _request(client: AsyncRerankClient, tool: str, arguments: Mapping[str, Any]) -> pb.RerankResponse:
    """The service's response. Raises: NotFound if there is no such tool; InvalidRequest; ServiceError."""
    if tool not in _ARGUMENTS:
        raise NotFound(f"there is no tool {tool[:100]!r}; use search or rerank")
    options = dict(arguments)
    query = options.pop("query", "")
    try:
        if tool == "search":
            return await client.search(query, **{"top_n": _SEARCH_TOP_N, "return_passages": True} | options)
        return await client.rerank(query, options.pop("candidates", []), **{"ordered": False} | options)
    except TypeError as error:
        raise InvalidRequest("arguments", str(error)) from error


def _answer(response: pb.RerankResponse) -> dict[str, Any]:
    """The answer to a client as JSON: the results, the model, how many candidates it ranked, and the time."""
    execution = response.execution
    found: dict[str, Any] = {
        "results": [_item(index, item) for index, item in enumerate(response.results, 1)],
        "model": execution.model,
        "completeness": pb.Completeness.Name(execution.completeness).removeprefix("COMPLETENESS_").lower(),
        "total_ms": round(execution.total_ms, 1),
    }
    return found | ({"reason": execution.reason} if execution.reason else {})


def _item(rank: int, item: pb.RankedCandidate) -> dict[str, Any]:
    found = {"rank": rank, "doc_id": item.doc_id, "score": round(item.score, 6)}
    return found | ({"text": f"{item.title} {item.text}".strip()} if item.HasField("text") else {})
