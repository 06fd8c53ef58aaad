"""The tools `search` and `rerank` of the MCP server: their descriptions, their arguments and their answers."""

from __future__ import annotations

import json
import logging
import reprlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import mcp.types as types
from mcp.server import Server, ServerRequestContext

from rerank import __version__
from rerank.client.client import rerank_request
from rerank.client.error_details import ServiceError
from rerank.config import Limits
from rerank.errors import MAX_QUOTED_CHARS, InvalidRequest, NotFound, RerankError, grpc_status_of, too_many
from rerank.names import DEFAULT_FIRST_STAGE, FirstStage, did_you_mean
from rerank.protobuf.fields import request_message
from rerank.protobuf.status import status_of
from rerank.v1 import rerank_pb2 as pb

log = logging.getLogger(__name__)

ToolRequest: TypeAlias = pb.SearchRequest | pb.RerankRequest
ToolResponse: TypeAlias = pb.SearchResponse | pb.RerankResponse

#: Results of a search that asks for no number: a language model reads all of them.
_SEARCH_TOP_N = 10
_CANDIDATE = {
    "type": "object",
    "properties": {
        "doc_id": {"type": "string", "description": "Default: its place in the list, from 0."},
        "text": {"type": "string"},
        "title": {"type": "string"},
        "score": {"type": "number", "description": "The first stage's score; give it to all candidates or to none."},
    },
    "required": ["text"],
}
_OF_BOTH = {
    "query": {"type": "string"},
    "model": {"type": "string"},
    "instruction": {"type": "string", "description": "Says what counts as relevant, for models that read one."},
}
#: Tool → the arguments that it describes.
_ARGUMENTS: dict[str, dict[str, dict[str, Any]]] = {
    "rerank": _OF_BOTH
    | {
        "candidates": {"type": "array", "minItems": 1, "items": {"anyOf": [{"type": "string"}, _CANDIDATE]}},
        "top_n": {"type": "integer", "minimum": 0, "description": "Number of results. Default: 0, for all."},
        "ordered": {
            "type": "boolean",
            "description": "Whether the candidates are in the order of a search, best first. Default: false.",
        },
    },
    "search": _OF_BOTH
    | {
        "top_n": {"type": "integer", "minimum": 0, "description": f"Results. Default: {_SEARCH_TOP_N}; 0: all."},
        "depth": {"type": "integer", "minimum": 1, "description": "Candidates that are reranked. Default: 100."},
        "first_stage": {"type": "string", "enum": [*FirstStage], "description": f"Default: {DEFAULT_FIRST_STAGE}."},
    },
}
_REQUESTS: dict[str, type[ToolRequest]] = {"rerank": pb.RerankRequest, "search": pb.SearchRequest}
#: Types of JSON's schemas and of Python.
_TYPES = {"string": str, "integer": int, "boolean": bool, "array": list}


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """The results and the model that ran, as a JSON object and as its text."""

    structured: dict[str, Any]
    text: str


@dataclass(frozen=True, slots=True)
class ToolService:
    """The service behind the tools.

    Attributes:
        ask: answers a request. Its second argument is the HTTP request that brought the call, or None over standard
            input.
        models: describes the models and the index.
        limits: the limits that hold before the arguments become a request; None if the service is elsewhere.
    """

    ask: Callable[[ToolRequest, Any], Awaitable[ToolAnswer]]
    models: Callable[[], pb.ListModelsResponse]
    limits: Callable[[], Limits | None]


def tool_server(service: ToolService) -> Server[Any]:
    """An MCP server with the tools. It offers the search if the service has an index."""

    async def list_tools(_: ServerRequestContext[Any], __: object) -> types.ListToolsResult:
        return types.ListToolsResult(tools=_tools(service.models()))

    async def call_tool(context: ServerRequestContext[Any], call: types.CallToolRequestParams) -> types.CallToolResult:
        try:
            request = _request(call.name, call.arguments or {}, service.limits())
            answer = await service.ask(request, context.request)
            content = types.TextContent(type="text", text=answer.text)
            return types.CallToolResult(content=[content], structured_content=answer.structured)
        except Exception as error:
            if not isinstance(error, RerankError):
                log.exception("bug in the tool %s", call.name[:100])
            return _refusal(error)

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


def _request(tool: str, arguments: Mapping[str, Any], limits: Limits | None) -> ToolRequest:
    """The request of a call. An argument may be any field of the request, also one that the tool does not describe.

    Raises: NotFound if there is no such tool; InvalidRequest.
    """
    if tool not in _ARGUMENTS:
        raise NotFound(f"there is no tool {tool[:100]!r}; use search or rerank")
    _check_arguments(tool, arguments)
    if tool == "search":
        return request_message(pb.SearchRequest, {"top_n": _SEARCH_TOP_N, "return_passages": True} | dict(arguments))
    options = {"ordered": False} | dict(arguments)
    candidates, query = options.pop("candidates", []), options.pop("query", "")
    if limits is not None and isinstance(candidates, list) and len(candidates) > limits.max_candidates:
        raise too_many("candidates", len(candidates), limits.max_candidates, "candidates")
    try:
        return rerank_request(query, candidates, options)
    except (TypeError, ValueError) as error:
        raise InvalidRequest("candidates", str(error)) from error


def _check_arguments(tool: str, arguments: Mapping[str, Any]) -> None:
    """Refuses arguments in the words of the tool's description. Raises: InvalidRequest."""
    described, known = _ARGUMENTS[tool], _REQUESTS[tool].DESCRIPTOR.fields_by_name
    for name, value in arguments.items():
        if name not in known:
            hint = did_you_mean(name, described)
            problem = f"the tool {tool} has no such argument;{hint} its arguments are {', '.join(described)}"
            raise InvalidRequest(name[:MAX_QUOTED_CHARS], problem)
        kind = described[name]["type"] if name in described else ""
        if kind and (not isinstance(value, _TYPES[kind]) or (kind == "integer" and isinstance(value, bool))):
            raise InvalidRequest(name, f"{reprlib.repr(value)} is not of the type {kind}; send one")


def tool_answer(response: ToolResponse) -> ToolAnswer:
    """The answer to a client: the results, the model, and how much it ranked."""
    execution = response.execution
    found: dict[str, Any] = {
        "results": [_item(place, item) for place, item in enumerate(response.results, 1)],
        "model": execution.model,
        "completeness": pb.Completeness.Name(execution.completeness).removeprefix("COMPLETENESS_").lower(),
        "total_ms": round(execution.total_ms, 1),
    }
    if execution.reason:
        found["reason"] = execution.reason
    return ToolAnswer(found, json.dumps(found, ensure_ascii=False))


def _item(rank: int, item: pb.RankedCandidate) -> dict[str, Any]:
    found = {"rank": rank, "doc_id": item.doc_id, "score": round(item.score, 6)}
    return found | ({"text": item.text} if item.HasField("text") else {})


def _refusal(error: Exception) -> types.CallToolResult:
    """The error of a tool, with the status and the message that a gRPC client gets."""
    if isinstance(error, ServiceError):
        text = f"{error.code.name}: {error}"
    else:
        text = f"{grpc_status_of(type(error))}: {status_of(error).message}"
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=True)
