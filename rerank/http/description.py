"""What the HTTP port says about the service: health, models, limits and its own interface."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rerank import __version__
from rerank.registry import ModelDescription
from rerank.reranker import AsyncReranker
from rerank.service.servicer import CallsInFlight


class Description:
    """Answers GET requests about the service.

    Args:
        reranker: the models, the index and the limits that are described.
        calls: knows whether the service is shutting down.
    """

    def __init__(self, reranker: AsyncReranker, calls: CallsInFlight) -> None:
        self._reranker, self._calls = reranker, calls

    def routes(self) -> list[Route]:
        return [
            Route("/health", self.health),
            Route("/info", self.info),
            Route("/v1/models", self.models),
        ]

    async def health(self, _: Request) -> Response:
        """200 if the default model is served, otherwise 503, as the health check of gRPC says."""
        problem = "shutting down" if self._calls.shutting_down else self._default().problem
        if problem:
            return JSONResponse({"status": "NOT_SERVING", "reason": problem}, HTTPStatus.SERVICE_UNAVAILABLE)
        return JSONResponse({"status": "SERVING"})

    async def info(self, _: Request) -> Response:
        """The default model and the limits, by TEI's names."""
        model, limits = self._default(), self._reranker.config.limits
        return JSONResponse(
            {
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
        )

    async def models(self, _: Request) -> Response:
        """The models that requests may name, the default one first, in the form of OpenAI's list."""
        return JSONResponse({"object": "list", "data": [_model(model) for model in self._reranker.models()]})

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
        "is_default": model.is_default,
        "problem": model.problem,
        "warning": model.info.warning,
    }
