"""The routes of the inspector on the HTTP port: its page, the models of the service, and judgements.

Headers of the page allow its own scripts only, so that no text from a service can run as a script.
"""

from __future__ import annotations

import os
from functools import partial
from importlib.resources import files

from google.protobuf.json_format import MessageToDict
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from rerank.collections.judgements import Judgements, read_judgements
from rerank.commands.example import EXAMPLE_PASSAGES, EXAMPLE_QUERY
from rerank.ports.http.description import Limited
from rerank.protobuf.messages import list_models_response
from rerank.reranking.reranker import AsyncReranker

#: Largest number of judged queries that the page suggests.
_SUGGESTIONS = 1000
#: Content-Security-Policy: scripts, styles and calls of this origin only. By Trusted Types, no text becomes markup.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",  # a browser asks each time whether a file has changed
}


def inspector_routes(reranker: AsyncReranker, limited: Limited) -> list[BaseRoute]:
    """The routes of the inspector. Its page calls /search and /rerank, as any client does.

    Raises:
        ConfigError, CollectionError: see `read_judgements`. The service checks the judgements at its start, too.
    """
    http = reranker.config.http
    judgements = read_judgements(http.qrels) if http and http.qrels else Judgements()

    def describe() -> Response:
        found = list_models_response(reranker)
        service = MessageToDict(found, preserving_proto_field_name=True)
        example = {"query": EXAMPLE_QUERY, "passages": EXAMPLE_PASSAGES}
        queries = judgements.queries[:_SUGGESTIONS]
        return JSONResponse({"service": service, "judged_queries": queries, "example": example})

    async def grades(request: Request) -> Response:
        query = request.query_params.get("query", "")
        return await limited(lambda: JSONResponse({"grades": dict(judgements.grades_of(query))}), request)

    return [
        *page_routes(),
        Route("/inspector/service", partial(limited, describe), methods=["GET"]),
        Route("/inspector/judgements", grades, methods=["GET"]),
    ]


class _Files(StaticFiles):
    """Static files with the headers of the page."""

    def file_response(
        self, full_path: str | os.PathLike[str], stat_result: os.stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        response = super().file_response(full_path, stat_result, scope, status_code)
        response.headers.update(_HEADERS)
        return response


def page_routes() -> list[BaseRoute]:
    """The routes of the page at /, and of its styles and scripts below /inspector/static."""
    folder = str(files("rerank.integrations.inspector") / "static")

    async def page(request: Request) -> Response:
        return FileResponse(f"{folder}/index.html", headers=_HEADERS)

    return [Route("/", page, methods=["GET"]), Mount("/inspector/static", _Files(directory=folder))]
