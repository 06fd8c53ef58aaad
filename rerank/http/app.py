"""The HTTP application: which path is answered by what."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from http import HTTPStatus
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from rerank.config import ServiceConfig
from rerank.grpc.servicer import CallsInFlight, OnEnd, RerankServicer
from rerank.http.cohere import Documents, DocumentsRequestOrAll
from rerank.http.description import Description
from rerank.http.dialect import Dialect
from rerank.http.endpoint import Endpoint, Shared
from rerank.http.hosts import own_hosts_only
from rerank.http.native import Native
from rerank.http.problem import RefusedByHttp, problem_of
from rerank.http.tei import Texts
from rerank.http.undecided import Undecided
from rerank.inspector.routes import inspector_routes
from rerank.reranker import AsyncReranker
from rerank.v1 import rerank_pb2 as pb


def create_app(reranker: AsyncReranker, calls: CallsInFlight, on_end: OnEnd) -> Starlette:
    """The HTTP application over an open reranker.

    Args:
        reranker: answers the requests; its configuration has the limits and the aliases of models.
        calls: the limits of calls in flight, and the keys; the same as those of gRPC.
        on_end: called when a request has ended.
    """
    config = reranker.config
    aliases = config.http.model_aliases if config.http else {}
    shared = Shared(calls, on_end, config.limits.max_message_bytes, aliases)
    by_body: dict[str, Dialect] = {
        "texts": Texts(),
        "documents": Documents(reranker.cut, "1", DocumentsRequestOrAll),
        "candidates": Native(pb.RerankRequest),
    }
    undecided = Undecided(list(by_body.values()))
    description = Description(reranker, shared, undecided)
    routes: list[BaseRoute] = [
        *_rerank_routes(reranker, shared, by_body, undecided),
        *description.routes(),
        *inspector_routes(reranker, description.counted),
    ]
    return Starlette(
        routes=routes,
        middleware=_only_own_hosts(config, undecided),
        exception_handlers={HTTPException: partial(_no_such_route, undecided)},
    )


def _only_own_hosts(config: ServiceConfig, undecided: Undecided) -> list[Middleware]:
    """Without keys or client certificates, refuses requests to other host names."""
    if config.keeps_strangers_out or config.insecure or config.http is None:
        return []
    return [own_hosts_only(config.http.listen, partial(_refusal, undecided))]


def _refusal(undecided: Undecided, error: RefusedByHttp) -> Response:
    problem = problem_of(error)
    return JSONResponse(dict(undecided.error(problem)), problem.status, problem.headers)


def _rerank_routes(
    reranker: AsyncReranker, shared: Shared, by_body: Mapping[str, Dialect], undecided: Undecided
) -> list[BaseRoute]:
    servicer = RerankServicer(reranker)
    v1, v2, search = Documents(reranker.cut, "1"), Documents(reranker.cut, "2"), Native(pb.SearchRequest)

    def choose(body: Mapping[str, Any]) -> Dialect:
        return next((dialect for name, dialect in by_body.items() if name in body), undecided)

    endpoints = {
        "/v1/rerank": Endpoint(shared, lambda _: v1, v1, servicer.Rerank),
        "/v2/rerank": Endpoint(shared, lambda _: v2, v2, servicer.Rerank),
        "/rerank": Endpoint(shared, choose, undecided, servicer.Rerank),
        "/search": Endpoint(shared, lambda _: search, search, servicer.Search),
    }
    return [Route(path, endpoint, methods=["POST"]) for path, endpoint in endpoints.items()]


async def _no_such_route(undecided: Undecided, request: Request, error: Exception) -> Response:
    """The answer to a path that does not exist, or to a method that it does not have."""
    assert isinstance(error, HTTPException)
    path, headers = request.url.path, dict(error.headers or {})
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        message = f"{path} does not take {request.method}; use {headers.get('Allow', 'another method')}"
    else:
        message = f"there is no {path[:200]}; GET /openapi.json lists the paths"
    return _refusal(undecided, RefusedByHttp(HTTPStatus(error.status_code), message, headers))
