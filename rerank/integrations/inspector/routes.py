"""The routes of the inspector on the HTTP port: its page, and the models of the service."""

from __future__ import annotations

from functools import partial
from typing import Any

from google.protobuf.json_format import MessageToDict
from starlette.routing import BaseRoute, Route

from rerank.integrations.inspector.pages import page_routes
from rerank.ports.http.description import Limited
from rerank.protobuf.replies import list_models_response
from rerank.reranking.reranker import AsyncReranker


def inspector_routes(reranker: AsyncReranker, limited: Limited) -> list[BaseRoute]:
    """Makes the routes. The page itself calls /search and /rerank, as any client does."""

    def describe() -> dict[str, Any]:
        return MessageToDict(list_models_response(reranker), preserving_proto_field_name=True)

    return [*page_routes(), Route("/inspector/service", partial(limited, describe), methods=["GET"])]
