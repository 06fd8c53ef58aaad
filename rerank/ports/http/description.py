"""GET routes that describe the service: health, models, limits, and the OpenAPI document."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from functools import cache, partial
from http import HTTPStatus
from typing import Any, TypeAlias

from google.protobuf.message import Message
from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rerank import __version__
from rerank.errors import RerankError
from rerank.ports.http.apis.api import ByField, JsonType, choices
from rerank.ports.http.apis.table import APIs
from rerank.ports.http.call import CONTENT_TYPE, TIMEOUT_HEADER, HttpCall
from rerank.reranking.registry import ModelDescription
from rerank.reranking.reranker import AsyncReranker
from rerank.service.limits import CallsInFlight

#: Returns the answer of a route.
Describe: TypeAlias = Callable[[], Response]
#: Answers a GET request by a function, if the caller's key and the limits on calls in flight allow it.
Limited: TypeAlias = Callable[[Describe, Request], Awaitable[Response]]

#: HTTP status of an error → its description in the OpenAPI document.
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
    """Returns the OpenAPI document of these APIs, as JSON values."""
    apis = [api for apis in by_path.values() for api in apis.values()]
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
    paths = {
        **{path: _post(apis) for path, apis in by_path.items()},
        "/v1/models": _get("The models that requests may name"),
        "/info": _get("The default model and the limits, by TEI's names"),
        "/health": _get("200 if the default model is served, otherwise 503"),
        "/.well-known/ready": _get("The same as /health, as Weaviate asks"),
        "/meta": _get("The same as /info, as Weaviate asks"),
    }
    return {
        "openapi": "3.1.0",
        "servers": [{"url": ".", "description": "The folder of this document, also behind a proxy with a path prefix"}],
        "info": {"title": "rerank", "version": __version__},
        "components": {
            "schemas": schemas["$defs"] | messages,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
        "paths": {
            path: {method: {"operationId": _operation_id(method, path)} | operation}
            for path, methods in paths.items()
            for method, operation in methods.items()
        },
    }


def _operation_id(method: str, path: str) -> str:
    """Returns a function's name for generated clients, such as post_v2_rerank; otherwise generators invent names."""
    return "_".join([method, *re.findall(r"[a-z0-9]+", path)])


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


def limited_by(calls: CallsInFlight, refuse: Callable[[RerankError], Response]) -> Limited:
    """Returns a function that answers GET requests within the limits of the caller's key and of all calls.

    Args:
        calls: the calls in flight, and the keys.
        refuse: error → the answer to a request that exceeds a limit or has no valid key.
    """

    async def limited(describe: Describe, request: Request) -> Response:
        port = HttpCall(request.scope, request.receive)
        try:
            with calls.enter(port, request.url.path):
                return describe()
        except RerankError as error:
            return refuse(error)
        finally:
            calls.leave(port)

    return limited


def description_routes(reranker: AsyncReranker, calls: CallsInFlight, by_path: APIs, limited: Limited) -> list[Route]:
    """Returns the routes that describe the service. If it has keys, callers without a key see its health only."""
    describe: dict[str, Describe] = {
        "/info": lambda: JSONResponse(_info(reranker, calls)),
        "/meta": lambda: JSONResponse(_info(reranker, calls)),  # Weaviate requests it and shows the answer
        "/v1/models": lambda: JSONResponse({"object": "list", "data": [_model(model) for model in reranker.models()]}),
        "/openapi.json": cache(lambda: JSONResponse(openapi(by_path))),  # it takes some 20 ms
    }

    async def health(_: Request) -> Response:
        """Answers 200 if the default model is served, otherwise 503, as the health check of gRPC does."""
        if reason := "shutting down" if calls.is_shutting_down else _default(reranker).problem:
            return JSONResponse({"status": "NOT_SERVING", "reason": reason}, HTTPStatus.SERVICE_UNAVAILABLE)
        return JSONResponse({"status": "SERVING"})

    return [
        *(Route(path, health) for path in ("/health", "/.well-known/ready")),  # Weaviate requests the second
        *(Route(path, partial(limited, handler)) for path, handler in describe.items()),
    ]


def _info(reranker: AsyncReranker, calls: CallsInFlight) -> dict[str, Any]:
    """The default model and the limits, under TEI's names."""
    model, limits = _default(reranker), calls.limits
    return {
        "model_id": model.info.model_id,
        "model_sha": model.info.model_revision or None,
        "model_type": {"reranker": {"id2label": {}, "label2id": {}}},
        "max_concurrent_requests": limits.max_calls,
        "max_input_length": model.info.max_passage_tokens,
        "max_batch_tokens": reranker.config.engine.max_batch_tokens,
        "max_client_batch_size": limits.max_candidates,
        "payload_limit": limits.max_message_bytes,
        "auto_truncate": True,
        "version": __version__,
    }


def _default(reranker: AsyncReranker) -> ModelDescription:
    return next(model for model in reranker.models() if model.is_default)


def _model(model: ModelDescription) -> dict[str, Any]:
    """A model that requests may name, in the form of OpenAI's list."""
    return {
        "id": model.name,
        "object": "model",
        "owned_by": "rerank",
        "ranker": model.info.kind,
        "model_id": model.info.model_id,
        "model_revision": model.info.model_revision,
        "max_window_size": model.info.max_window_size,
        "default_strategy": str(model.default_strategy),
        "reads_instruction": model.info.reads_instruction,
        "gives_relevance": model.gives_relevance,
        "is_default": model.is_default,
        "problem": model.problem,
        "warning": model.info.warning,
        "is_loaded": model.is_loaded,
        "load_s": model.load_s,
        "memory_bytes": model.memory_bytes,
        "gpu_memory_bytes": model.gpu_memory_bytes,
    }
