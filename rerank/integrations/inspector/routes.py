"""The routes of the inspector on the HTTP port: its page, the models of the service, and judgements."""

from __future__ import annotations

from functools import partial
from typing import Any

from google.protobuf.json_format import MessageToDict
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from rerank.collections.judgements import Judgements, read_judgements
from rerank.integrations.inspector.pages import page_routes
from rerank.ports.http.description import Limited
from rerank.protobuf.replies import list_models_response
from rerank.reranking.reranker import AsyncReranker

#: The page suggests this many judged queries while one types.
_SUGGESTIONS = 1000


def inspector_routes(reranker: AsyncReranker, limited: Limited) -> list[BaseRoute]:
    """Makes the routes. The page itself calls /search and /rerank, as any client does.

    Raises:
        ConfigError, CollectionError: see `read_judgements`; the start of the service has checked them before.
    """
    http = reranker.config.http
    judgements = read_judgements(http.qrels) if http and http.qrels else Judgements()

    def describe() -> dict[str, Any]:
        found = list_models_response(reranker)
        return {
            "service": MessageToDict(found, preserving_proto_field_name=True),
            "judged_queries": judgements.queries[:_SUGGESTIONS],
        }

    async def grades(request: Request) -> Response:
        query = request.query_params.get("query", "")
        return await limited(lambda: {"grades": dict(judgements.of_query(query))}, request)

    return [
        *page_routes(),
        Route("/inspector/service", partial(limited, describe), methods=["GET"]),
        Route("/inspector/judgements", grades, methods=["GET"]),
    ]
