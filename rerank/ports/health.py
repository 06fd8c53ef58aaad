"""Health of the service: whether its models are served, and, apart from that, whether the process lives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

from grpc_health.v1 import health_pb2
from grpc_health.v1.health import aio

from rerank.errors import InvalidRequest, NotFound
from rerank.names import LIVENESS, SERVICE

if TYPE_CHECKING:
    from rerank.reranking.registry import ModelDescription
    from rerank.reranking.reranker import AsyncReranker

#: A value of the enum grpc.health.v1.HealthCheckResponse.ServingStatus.
HealthStatus: TypeAlias = int
#: The longest name of a service that is looked up.
_MAX_NAME_CHARS = 1000
#: Seconds between two updates of statuses, because those of models in inference servers change.
_FOLLOW_S = 0.5


class HealthServicer(aio.HealthServicer):  # type: ignore[misc]  # grpc_health has no types
    """The statuses of `health_statuses`, and SERVING under LIVENESS."""

    def __init__(self) -> None:
        super().__init__()
        self._names: set[str] = set()

    async def check(self, request: health_pb2.HealthCheckRequest) -> Any:
        """The status of a service. Raises: NotFound for one that has none, InvalidRequest for a long name."""
        if request.service == LIVENESS:
            return health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)
        _check_name(request.service)
        if request.service not in self._names:
            known = f"'' (the default model), '{SERVICE}/MODEL' or '{LIVENESS}'"  # models are not told without a key
            raise NotFound(f"there is no health status of {request.service!r}; ask for {known}")
        return await self.Check(request, None)

    async def watch(self, request: health_pb2.HealthCheckRequest, context: Any) -> None:
        """Sends the status of a service, and again when it changes. Raises: InvalidRequest for a long name."""
        _check_name(request.service)  # which is kept while the call lasts
        await self.Watch(request, context)

    async def set_statuses(self, models: Sequence[ModelDescription]) -> None:
        """Sets the statuses of the service and of its models."""
        for name, status in health_statuses(models).items():
            self._names.add(name)
            await self.set(name, status)


@asynccontextmanager
async def health_of(reranker: AsyncReranker) -> AsyncIterator[HealthServicer]:
    """Health checks whose statuses follow the models until the block ends."""
    health = HealthServicer()
    await health.set_statuses(reranker.models())

    async def follow() -> None:
        while any(model.servers for model in reranker.config.models):
            await asyncio.sleep(_FOLLOW_S)
            await health.set_statuses(reranker.models())

    following = asyncio.create_task(follow())
    try:
        yield health
    finally:
        following.cancel()


def health_statuses(models: Sequence[ModelDescription]) -> dict[str, HealthStatus]:
    """Service name → health status: "" and SERVICE have the default model's status, SERVICE/NAME that of each model."""
    statuses = {f"{SERVICE}/{model.name}": _health(model) for model in models}
    default = next(_health(model) for model in models if model.is_default)
    return {"": default, SERVICE: default} | statuses


def _check_name(service: str) -> None:
    if len(service) > _MAX_NAME_CHARS:
        raise InvalidRequest(
            "service", f"{len(service)} characters exceed the limit of {_MAX_NAME_CHARS}; send the name of a service"
        )


def _health(model: ModelDescription) -> HealthStatus:
    return health_pb2.HealthCheckResponse.NOT_SERVING if model.problem else health_pb2.HealthCheckResponse.SERVING
