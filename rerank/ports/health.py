"""Health of the service: whether its models are served, and whether the process is alive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeAlias

from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2 import HealthCheckResponse

from rerank.errors import NotFound
from rerank.names import LIVENESS, SERVICE

if TYPE_CHECKING:
    from rerank.reranking.registry import ModelDescription
    from rerank.reranking.reranker import AsyncReranker

#: A value of the enum grpc.health.v1.HealthCheckResponse.ServingStatus.
HealthStatus: TypeAlias = int
#: Seconds between two updates of statuses, because models in inference servers come and go.
_FOLLOW_S = 0.5


class Health:
    """Answers health checks: by the statuses of `health_statuses`, and SERVING for the service LIVENESS."""

    def __init__(self) -> None:
        self._statuses: dict[str, HealthStatus] = {}
        self._changed = asyncio.Event()
        self._is_shutting_down = False

    def check(self, request: health_pb2.HealthCheckRequest) -> HealthCheckResponse:
        """Returns the status of a service. Raises: NotFound for a service without a status."""
        status = self._status(request.service)
        if status == HealthCheckResponse.SERVICE_UNKNOWN:
            known = f"'' (the default model), '{SERVICE}/MODEL' or '{LIVENESS}'"  # no model names without a key
            raise NotFound(f"there is no health status of {request.service!r}; ask for {known}")
        return HealthCheckResponse(status=status)

    async def watch(self, request: health_pb2.HealthCheckRequest) -> AsyncIterator[HealthCheckResponse]:
        """Yields the status of a service at once, and after each change."""
        last = None
        while True:
            changed, status = self._changed, self._status(request.service)
            if status != last:
                yield HealthCheckResponse(status=status)
                last = status
            await changed.wait()

    def set_statuses(self, models: Sequence[ModelDescription]) -> None:
        if not self._is_shutting_down:
            self._set(health_statuses(models))

    def shut_down(self) -> None:
        """Sets all statuses to NOT_SERVING for good."""
        self._is_shutting_down = True
        self._set(dict.fromkeys(self._statuses, HealthCheckResponse.NOT_SERVING))

    def _status(self, service: str) -> HealthStatus:
        if service == LIVENESS:
            return HealthCheckResponse.SERVING
        return self._statuses.get(service, HealthCheckResponse.SERVICE_UNKNOWN)

    def _set(self, statuses: dict[str, HealthStatus]) -> None:
        if statuses != self._statuses:
            self._statuses = statuses
            self._changed.set()
            self._changed = asyncio.Event()


@asynccontextmanager
async def health_of(reranker: AsyncReranker) -> AsyncIterator[Health]:
    """Yields health checks, whose statuses follow those of the models until the block ends."""
    health = Health()
    health.set_statuses(reranker.models())

    async def follow() -> None:
        while any(model.servers for model in reranker.config.models):
            await asyncio.sleep(_FOLLOW_S)
            health.set_statuses(reranker.models())

    following = asyncio.create_task(follow())
    try:
        yield health
    finally:
        following.cancel()


def health_statuses(models: Sequence[ModelDescription]) -> dict[str, HealthStatus]:
    """Service name → health status: "" and SERVICE have the default model's status, SERVICE/NAME has NAME's."""
    statuses = {f"{SERVICE}/{model.name}": _health(model) for model in models}
    default = next(_health(model) for model in models if model.is_default)
    return {"": default, SERVICE: default} | statuses


def _health(model: ModelDescription) -> HealthStatus:
    return HealthCheckResponse.NOT_SERVING if model.problem else HealthCheckResponse.SERVING
