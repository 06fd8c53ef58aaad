"""A replica of the service: a process that Ray Serve starts, watches and ends."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc

from rerank.access.keys import KeyStore
from rerank.config import ServiceConfig
from rerank.errors import SelfTestFailed
from rerank.integrations.ray_serve.proxy import TIME_REMAINING, set_status
from rerank.ports.grpc.handlers import RerankMethods, health_methods
from rerank.ports.health import health_of
from rerank.reranking.reranker import AsyncReranker, load_reranker
from rerank.service.call import REQUEST_ID, DoneNotifier, only_value, request_id_of
from rerank.service.limits import CallsInFlight
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
        self._reranker = load(config)
        await self.check_health()
        stack = AsyncExitStack()  # ends with the process
        await stack.enter_async_context(self._reranker)
        calls = CallsInFlight(config.limits, KeyStore(config.keys) if config.keys else None)
        observed = stack.enter_context(telemetry(self._reranker, calls))
        if observed.metrics is not None:
            from rerank.ports.http.metrics import running_metrics  # needs the extra observability

            await stack.enter_async_context(running_metrics(observed.metrics, config))
        health = await stack.enter_async_context(health_of(self._reranker))
        self._methods = RerankMethods(self._reranker, calls, observed.on_end).by_name
        self._methods |= health_methods(health, CallsInFlight(config.limits))

    async def Rerank(self, message: bytes, grpc_context: RayServegRPCContext) -> _Serialized:  # noqa: N802
        return await self._answer("Rerank", message, grpc_context)

    async def Search(self, message: bytes, grpc_context: RayServegRPCContext) -> _Serialized:  # noqa: N802
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
        if model.problem and not any(model.servers for model in config.models):
            raise SelfTestFailed(f"the default model {model.name!r} cannot be served; {model.problem}")

    async def _answer(self, method: str, message: bytes, context: RayServegRPCContext) -> _Serialized:
        if len(message) > self._max_message_bytes:  # as gRPC says it
            context.set_code(grpc.StatusCode.RESOURCE_EXHAUSTED)
            context.set_details(f"Received message larger than max ({len(message)} vs. {self._max_message_bytes})")
            context.set_trailing_metadata([(REQUEST_ID, "")])
            return _Serialized(b"")
        call = RayCall(message, context)
        named = (REQUEST_ID, call.request_id)  # which also tells the proxy that a replica ended the call
        try:
            reply = await self._methods[method](call)
            context.set_trailing_metadata([named])
        except Exception as error:
            reply, error.__traceback__ = b"", None  # it keeps the message
            set_status(context, error, named)
        finally:
            call.finish()
        return _Serialized(reply)


class RayCall(DoneNotifier):
    """A unary call, see `rerank.service.call.PortCall`.

    Args:
        message: the bytes of the request.
        context: what Ray Serve tells of the call.
    """

    def __init__(self, message: bytes, context: RayServegRPCContext) -> None:
        self._message = message
        self.peer = context.peer()
        headers = list(context.invocation_metadata())
        self.request_id, self.authorization = request_id_of(headers), only_value(headers, "authorization")
        remaining_s = float(dict(headers).get(TIME_REMAINING, math.inf))
        self.deadline_s = asyncio.get_running_loop().time() + remaining_s

    async def read(self, place: AbstractAsyncContextManager[None]) -> bytes:
        return self._message

    def hang_up(self) -> None:
        """Does nothing: the connections belong to Ray Serve's proxy."""


@dataclass(frozen=True)
class _Serialized:
    """A message as bytes, with the method that Ray Serve calls for them."""

    message: bytes

    def SerializeToString(self) -> bytes:  # noqa: N802
        return self.message
