"""The description of the HTTP port in OpenAPI 3.1, made from the types of its requests and replies."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from rerank import __version__
from rerank.http.call import TIMEOUT_HEADER
from rerank.http.cohere import DocumentsReply, DocumentsRequest, DocumentsRequestOrAll
from rerank.http.tei import RankList, TextsRequest
from rerank.v1 import rerank_pb2 as pb

_REQUESTS: list[type[BaseModel]] = [DocumentsRequest, DocumentsRequestOrAll, TextsRequest]
_REPLIES: list[type[BaseModel]] = [DocumentsReply, RankList]
_STATUSES = {
    400: "The request is wrong, or needs a part that the service runs without; the message says what and why.",
    401: "The service needs an API key.",
    403: "The API key does not allow the model.",
    404: "There is no such model, or no such passage in the index.",
    413: "The request is too large.",
    415: "The content type is not application/json, or the body is compressed.",
    429: "The service is busy; Retry-After has seconds.",
    503: "The service is shutting down; Retry-After has seconds.",
    504: "The deadline came first, or cannot be met.",
}


def openapi() -> dict[str, Any]:
    """The OpenAPI document."""
    _, schemas = models_json_schema(
        [(each, "validation") for each in _REQUESTS] + [(each, "serialization") for each in _REPLIES],
        ref_template="#/components/schemas/{model}",
    )
    native = {message.DESCRIPTOR.name: _native(message) for message in _NATIVE}
    return {
        "openapi": "3.1.0",
        "info": {"title": "rerank", "version": __version__},
        "components": {
            "schemas": schemas["$defs"] | native,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
        "paths": {
            "/v1/rerank": _post(
                "Order documents: Cohere's API v1, Jina's API", ["DocumentsRequest"], ["DocumentsReply"]
            ),
            "/v2/rerank": _post("Order documents: Cohere's API v2", ["DocumentsRequest"], ["DocumentsReply"]),
            "/rerank": _post(
                "Order documents (Cohere, Jina, vLLM), texts (TEI) or candidates (gRPC's Rerank)",
                ["DocumentsRequestOrAll", "TextsRequest", "RerankRequest"],
                ["DocumentsReply", "RankList", "RerankResponse"],
            ),
            "/search": _post("Retrieve and order passages: gRPC's Search", ["SearchRequest"], ["SearchResponse"]),
            "/v1/models": _get("The models that requests may name"),
            "/info": _get("The default model and the limits, by TEI's names"),
            "/health": _get("200 if the default model is served, otherwise 503"),
        },
    }


_NATIVE: tuple[type[Message], ...] = (pb.RerankRequest, pb.RerankResponse, pb.SearchRequest, pb.SearchResponse)


def _native(message: type[Message]) -> dict[str, Any]:
    fields: dict[str, Any] = {name: {} for name in message.DESCRIPTOR.fields_by_name}
    description = f"The JSON mapping of {message.DESCRIPTOR.full_name}; rerank.proto describes the fields."
    return {"type": "object", "description": description, "properties": fields, "additionalProperties": False}


def _post(summary: str, requests: list[str], replies: list[str]) -> dict[str, Any]:
    errors = {str(status): {"description": description} for status, description in _STATUSES.items()}
    timeout = {
        "name": TIMEOUT_HEADER,
        "in": "header",
        "description": "Milliseconds until the answer must be there.",
        "schema": {"type": "integer", "minimum": 1},
    }
    return {
        "post": {
            "summary": summary,
            "parameters": [timeout],
            "requestBody": {"required": True, "content": _content(requests)},
            "responses": {"200": {"description": "The ranking", "content": _content(replies)}, **errors},
        }
    }


def _content(schemas: list[str]) -> dict[str, Any]:
    references = [{"$ref": f"#/components/schemas/{name}"} for name in schemas]
    return {"application/json": {"schema": references[0] if len(references) == 1 else {"anyOf": references}}}


def _get(summary: str) -> dict[str, Any]:
    return {"get": {"summary": summary, "responses": {"200": {"description": "A JSON object"}}}}
