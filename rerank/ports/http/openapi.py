"""The description of the HTTP port in OpenAPI 3.1, which is made from the types of its requests and replies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.protobuf.message import Message
from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from rerank import __version__
from rerank.ports.http.apis.api import ByField, JsonType, choices
from rerank.ports.http.apis.table import APIs
from rerank.ports.http.endpoint import CONTENT_TYPE, TIMEOUT_HEADER

_STATUSES = {
    400: "The request is wrong, or needs a part that the service runs without; the message says what and why.",
    401: "The service needs an API key.",
    404: "There is no such model, or no such passage in the index.",
    413: "The request is too large.",
    415: f"The content type is not {CONTENT_TYPE}, or the body is compressed.",
    429: "The service is busy; Retry-After has seconds.",
    503: "The service is shutting down; Retry-After has seconds.",
    504: "The deadline passed first.",
}


def openapi(by_path: APIs) -> dict[str, Any]:
    """The OpenAPI document of these APIs."""
    apis = [api for of_path in by_path.values() for api in of_path.values()]
    requests: list[JsonType] = list(dict.fromkeys(api.request for api in apis))
    replies: list[JsonType] = list(dict.fromkeys(api.reply for api in apis))
    models: list[tuple[type[BaseModel], JsonSchemaMode]] = [
        *((request, "validation") for request in requests if issubclass(request, BaseModel)),
        *((reply, "serialization") for reply in replies if issubclass(reply, BaseModel)),
    ]
    _, schemas = models_json_schema(models, ref_template="#/components/schemas/{model}")
    messages = {
        request.DESCRIPTOR.name: _message(request) for request in (*requests, *replies) if issubclass(request, Message)
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "rerank", "version": __version__},
        "components": {
            "schemas": schemas["$defs"] | messages,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
        "paths": {
            **{path: _post(of_path) for path, of_path in by_path.items()},
            "/v1/models": _get("The models that requests may name"),
            "/info": _get("The default model and the limits, by TEI's names"),
            "/health": _get("200 if the default model is served, otherwise 503"),
            "/.well-known/ready": _get("The same as /health, as Weaviate asks"),
            "/meta": _get("The same as /info, as Weaviate asks"),
        },
    }


def _message(message: type[Message]) -> dict[str, Any]:
    fields: dict[str, Any] = {name: {} for name in message.DESCRIPTOR.fields_by_name}
    description = f"The JSON mapping of {message.DESCRIPTOR.full_name}; rerank.proto describes the fields."
    return {"type": "object", "description": description, "properties": fields, "additionalProperties": False}


def _post(apis: ByField) -> dict[str, Any]:
    errors = {str(status): {"description": description} for status, description in _STATUSES.items()}
    timeout = {
        "name": TIMEOUT_HEADER,
        "in": "header",
        "description": "Milliseconds until the answer must be there.",
        "schema": {"type": "integer", "minimum": 1},
    }
    return {
        "post": {
            "summary": f"Rank {choices(apis)}",
            "parameters": [timeout],
            "requestBody": {"required": True, "content": _content([api.request for api in apis.values()])},
            "responses": {
                "200": {"description": "The ranking", "content": _content([api.reply for api in apis.values()])},
                **errors,
            },
        }
    }


def _content(types: Sequence[JsonType]) -> dict[str, Any]:
    references = [{"$ref": f"#/components/schemas/{kind.__name__}"} for kind in types]
    return {"application/json": {"schema": references[0] if len(references) == 1 else {"anyOf": references}}}


def _get(summary: str) -> dict[str, Any]:
    return {"get": {"summary": summary, "responses": {"200": {"description": "A JSON object"}}}}
