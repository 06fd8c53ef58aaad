"""GET routes that describe the service: health, models, limits and the OpenAPI document."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rerank import __version__
from rerank.errors import RerankError
from rerank.http.call import HttpCall
from rerank.http.endpoint import Shared
from rerank.http.openapi import openapi
from rerank.http.problem import problem_of
from rerank.http.undecided import Undecided
from rerank.registry import ModelDescription
from rerank.reranker import AsyncReranker


class Description:
    """Answers GET requests about the service.

    Args:
        reranker: the models, the index and the limits that are described.
        shared: the calls in flight: only those with a key are told more than the health, if there are keys.
        undecided: the dialect of errors.
    """

    def __init__(self, reranker: AsyncReranker, shared: Shared, undecided: Undecided) -> None:
        self._reranker, self._shared, self._undecided = reranker, shared, undecided

    def routes(self) -> list[Route]:
        return [
            Route("/health", self.health),
            Route("/info", partial(self.counted, self._info)),
            Route("/v1/models", partial(self.counted, self._models)),
            Route("/openapi.json", partial(self.counted, openapi)),
        ]

    async def counted(self, describe: Callable[[], dict[str, Any]], request: Request) -> Response:
        """The description, or why the caller does not get it."""
        call = HttpCall(request.scope, request.receive, self._shared.max_bytes)
        try:
            self._shared.calls.enter(call.as_context)
            return JSONResponse(describe())
        except RerankError as error:
            problem = problem_of(error)
            return JSONResponse(dict(self._undecided.error(problem)), problem.status, problem.headers)
        finally:
            call.finish()

    async def health(self, _: Request) -> Response:
        """200 if the default model is served, otherwise 503, as the health check of gRPC says."""
        problem = "shutting down" if self._shared.calls.shutting_down else self._default().problem
        if problem:
            return JSONResponse({"status": "NOT_SERVING", "reason": problem}, HTTPStatus.SERVICE_UNAVAILABLE)
        return JSONResponse({"status": "SERVING"})

    def _info(self) -> dict[str, Any]:
        """The default model and the limits, by TEI's names."""
        model, limits = self._default(), self._reranker.config.limits
        return {
            "model_id": model.info.model_id,
            "model_sha": model.info.model_revision or None,
            "model_type": {"reranker": {"id2label": {}, "label2id": {}}},
            "max_concurrent_requests": limits.max_calls,
            "max_input_length": model.info.max_passage_tokens,
            "max_batch_tokens": self._reranker.config.engine.max_batch_tokens,
            "max_client_batch_size": limits.max_candidates,
            "payload_limit": limits.max_message_bytes,
            "auto_truncate": True,
            "version": __version__,
        }

    def _models(self) -> dict[str, Any]:
        """The models that requests may name, the default one first, in the form of OpenAI's list."""
        return {"object": "list", "data": [_model(model) for model in self._reranker.models()]}

    def _default(self) -> ModelDescription:
        return next(model for model in self._reranker.models() if model.is_default)


def _model(model: ModelDescription) -> dict[str, Any]:
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
        "is_default": model.is_default,
        "problem": model.problem,
        "warning": model.info.warning,
    }
