"""The web application of `rerank inspect`: a page about the results of an evaluation."""

from __future__ import annotations

from http import HTTPStatus

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rerank.errors import NotFound
from rerank.integrations.inspector.evaluation import Evaluation
from rerank.integrations.inspector.pages import page_routes
from rerank.ports.http.hosts import OwnHosts
from rerank.ports.http.problem import RefusedByHttp


def evaluation_app(evaluation: Evaluation, listen: str, insecure: bool = False) -> Starlette:
    """The application with the page about an evaluation.

    Args:
        evaluation: the results that the page shows.
        listen: HOST:PORT of the page.
        insecure: whether it answers to every host name.
    """

    def overview(request: Request) -> Response:
        return JSONResponse(evaluation.overview())

    def ranking(request: Request) -> Response:
        parameters = request.query_params
        try:
            found = evaluation.ranking(parameters.get("system", ""), parameters.get("query_id", ""))
        except NotFound as error:
            return JSONResponse({"message": str(error)}, HTTPStatus.NOT_FOUND)
        return JSONResponse(found)

    return Starlette(
        routes=[
            *page_routes("evaluation.html"),
            Route("/inspector/evaluation", overview, methods=["GET"]),
            Route("/inspector/evaluation/ranking", ranking, methods=["GET"]),
        ],
        middleware=[] if insecure else [Middleware(OwnHosts, listen, _refusal, "--insecure")],
    )


def _refusal(error: RefusedByHttp) -> Response:
    return JSONResponse({"message": str(error)}, error.status)
