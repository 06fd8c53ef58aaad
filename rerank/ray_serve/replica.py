"""A replica of the service: a process that Ray Serve starts, watches and ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc

from rerank.access.keyed_reranker import KeyedReranker
from rerank.config import ServiceConfig
from rerank.errors import SelfTestFailed
from rerank.grpc.services import add_services, calls_in_flight
from rerank.ray_serve.call import RayCall
from rerank.reranker import AsyncReranker, load_reranker
from rerank.telemetry.logs import set_up_logging
from rerank.telemetry.setup import telemetry

if TYPE_CHECKING:
    from ray.serve.grpc_util import RayServegRPCContext


class Replica:
    """Answers calls in a process of Ray Serve, which calls the methods by the names of the gRPC methods.

    Args:
        settings: a ServiceConfig as JSON.
        load: opens the reranker, as `load_reranker` does.

    Raises:
        SelfTestFailed: the default model cannot be served. Ray Serve then keeps the replicas of an earlier deployment.
        ConfigError, CheckpointError, IndexMismatch: see `load_reranker` and `running_server`.
    """

    async def __init__(  # type: ignore[misc]  # Ray Serve awaits it
        self, settings: Mapping[str, Any], load: Callable[..., AsyncReranker] = load_reranker
    ) -> None:
        config = ServiceConfig.model_validate(settings)
        set_up_logging(config.telemetry)
        self._max_message_bytes = config.limits.max_message_bytes
        self._reranker = load(config, AsyncReranker if config.keys is None else KeyedReranker)
        await self.check_health()
        self._handlers = _Handlers()
        stack = AsyncExitStack()  # ends with the process
        await stack.enter_async_context(self._reranker)
        calls = calls_in_flight(config)
        observed = stack.enter_context(telemetry(self._reranker, calls))
        await add_services(self._handlers, self._reranker, calls, observed.on_end, stack)

    async def Rerank(self, message: bytes, grpc_context: RayServegRPCContext) -> _Serialized:  # noqa: N802
        """RerankService.Rerank."""
        return await self._answer("Rerank", message, grpc_context)

    async def Search(self, message: bytes, grpc_context: RayServegRPCContext) -> _Serialized:  # noqa: N802
        """RerankService.Search."""
        return await self._answer("Search", message, grpc_context)

    async def ListModels(self, message: bytes, grpc_context: RayServegRPCContext) -> _Serialized:  # noqa: N802
        """RerankService.ListModels."""
        return await self._answer("ListModels", message, grpc_context)

    async def Check(self, message: bytes, grpc_context: RayServegRPCContext) -> _Serialized:  # noqa: N802
        """grpc.health.v1.Health.Check: the statuses of this replica."""
        return await self._answer("Check", message, grpc_context)

    async def check_health(self) -> None:
        """Says whether the default model passed its self-test; Ray Serve replaces a replica that raises.

        Problems of inference servers do not count, because another replica would have them, too.

        Raises:
            SelfTestFailed: the model cannot be served.
        """
        model, config = next(model for model in self._reranker.models() if model.is_default), self._reranker.config
        if model.problem and not any(getattr(each, "served_by", None) for each in config.models):
            raise SelfTestFailed(f"the default model {model.name!r} cannot be served; {model.problem}")

    async def _answer(self, method: str, message: bytes, context: RayServegRPCContext) -> _Serialized:
        call = RayCall(message, context)
        try:
            if len(message) > self._max_message_bytes:  # as gRPC says it
                sizes = f"{len(message)} vs. {self._max_message_bytes}"
                await call.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"Received message larger than max ({sizes})")
            return _Serialized(await self._handlers[method].stream_unary(None, call))
        except grpc.aio.AbortError:
            return _Serialized(b"")
        finally:
            call.finish()


@dataclass(frozen=True)
class _Serialized:
    """A message as bytes, with the method by which Ray Serve asks for them."""

    message: bytes

    def SerializeToString(self) -> bytes:  # noqa: N802
        return self.message


class _Handlers(dict[str, Any]):
    """The handlers of services by the names of their methods; services register with it as with a gRPC server."""

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """Does nothing: services register the same handlers a second time, by method."""

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        """Adds the handlers of a service."""
        self.update(handlers)
