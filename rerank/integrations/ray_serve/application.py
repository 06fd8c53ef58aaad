"""Deploys the service on a Ray cluster: checks its settings, and starts Ray Serve's gRPC proxy and the replicas.

A replica is a process that Ray Serve starts, watches and ends.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc
import ray
from ray import serve
from ray.serve.config import AutoscalingConfig, HTTPOptions, gRPCOptions

from rerank.access.keys import KeyStore
from rerank.config import ServiceConfig
from rerank.errors import ConfigError, SelfTestFailed
from rerank.integrations.ray_serve.proxy import TIME_REMAINING, add_services, set_status
from rerank.ports.grpc.handlers import RerankMethods, health_methods
from rerank.ports.health import health_of
from rerank.reranking.reranker import AsyncReranker, load_reranker
from rerank.service.call import REQUEST_ID, only_value, request_id_of
from rerank.service.limits import CallsInFlight
from rerank.service.startup import check_before_loading
from rerank.telemetry.logs import set_up_logging
from rerank.telemetry.setup import telemetry

if TYPE_CHECKING:
    from ray.serve.grpc_util import RayServegRPCContext

#: The name of the application and of its deployment in Ray Serve.
NAME = "rerank"
#: The tested version of Ray, to which the extra `ray` is pinned because `proxy` uses internals of Ray.
_RAY_VERSION = "2.60"
#: Hosts of `listen` that mean all addresses of a machine.
_ALL_ADDRESSES = ("0.0.0.0", "[::]")
#: Ray's settings for a cluster on this machine; variables of the environment take precedence.
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",  # by default, Ray reports its use to its developers
    "RAY_worker_niceness": "0",  # by default, Ray's processes have a low priority
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",  # the default is too short for a busy machine
}
#: Number of calls in flight for each replica that autoscaling aims at.
_CALLS_OF_A_REPLICA = 8
#: Setting that has no effect with Ray Serve → what to do instead.
_NOT_FOLLOWED = {"http": "serve HTTP with `rerank serve`", "tls": "encrypt in a proxy in front of Ray Serve"}


@dataclass(frozen=True, slots=True)
class Scale:
    """The number of replicas, and the resources of a replica.

    Attributes:
        replicas: number of replicas; with `max_replicas`, the smallest number.
        max_replicas: largest number of replicas, for autoscaling by calls in flight; None for no autoscaling.
        num_gpus: number of GPUs of a replica, which also has one core; with a fraction, replicas share a GPU.
    """

    replicas: int = 1
    max_replicas: int | None = None
    num_gpus: float = 0.0

    def __post_init__(self) -> None:
        """Raises: ConfigError if `max_replicas` is below `replicas`."""
        if self.max_replicas is not None and self.max_replicas < self.replicas:
            raise ConfigError(
                f"--max-replicas {self.max_replicas} is less than --replicas {self.replicas}; give it at least as many"
            )


def connect(address: str | None, **options: Any) -> None:
    """Connects to the Ray cluster at an address, or starts one on this machine.

    Args:
        address: HOST:PORT, or "auto" for a cluster that runs on this machine; None to start one.
        options: further arguments of `ray.init`.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    ray.init(address, include_dashboard=False if address is None else None, **options)


def check(config: ServiceConfig, scale: Scale = Scale()) -> None:
    """Checks settings before they are deployed.

    Args:
        scale: the number of replicas.

    Raises:
        ConfigError: a setting cannot be used, Ray Serve cannot follow it, or another version of Ray is installed.
        IndexMismatch: see `check_before_loading`.
    """
    if not ray.__version__.startswith(f"{_RAY_VERSION}."):
        raise ConfigError(
            f"Ray {ray.__version__} is installed, but the service was tested with Ray {_RAY_VERSION} only; install "
            "rerank-listwise[ray]"
        )
    host = config.listen.rpartition(":")[0]
    if host not in _ALL_ADDRESSES:
        raise ConfigError(f"listen {config.listen}: Ray Serve listens on all addresses; set it to [::]:PORT")
    default = ServiceConfig()
    for name, instead in _NOT_FOLLOWED.items():
        if getattr(config, name) != getattr(default, name):
            raise ConfigError(f"{name}: Ray Serve does not follow this setting; leave it out, and {instead}")
    metrics = config.telemetry.metrics
    if metrics and not metrics.endswith(":0") and (most := scale.max_replicas or scale.replicas) > 1:
        raise ConfigError(
            f"telemetry.metrics {metrics}: {most} replicas on a machine cannot share a port; give port 0, with which "
            "each takes a free one"
        )
    if config.telemetry.traces:
        raise ConfigError("telemetry.traces: Ray Serve does not follow this setting; leave it out, and trace with Ray")
    check_before_loading(config, binds=False)  # the proxy of an earlier deployment may listen at the address


def deploy(config: ServiceConfig, scale: Scale, **replica: Any) -> None:
    """Starts the replicas, or replaces those of an earlier deployment one by one; returns when all are ready.

    The process must be connected to a Ray cluster, see `connect`. The proxy of a cluster is started once, so later
    deployments keep its port.

    Args:
        config: settings that `check` has accepted.
        scale: the number of replicas.
        replica: further arguments of Replica.

    Raises:
        ConfigError: the replicas did not start. Those of an earlier deployment that are not replaced yet run on.
    """
    serve.start(
        proxy_location="EveryNode",
        http_options=HTTPOptions(host="127.0.0.1", port=0),
        grpc_options=gRPCOptions(
            port=int(config.listen.rpartition(":")[2]),
            grpc_servicer_functions=[f"{add_services.__module__}.{add_services.__name__}"],
            enable_reflection=config.keys is None,
        ),
    )
    deployment = serve.deployment(Replica, name=NAME).options(**_options(config, scale))
    try:
        serve.run(deployment.bind(config.model_dump(mode="json", exclude_unset=True), **replica), name=NAME)
    except RuntimeError as error:
        reason = serve.status().applications[NAME].deployments[NAME].message
        raise ConfigError(f"the replicas did not start: {reason or error}") from error


def _options(config: ServiceConfig, scale: Scale) -> dict[str, Any]:
    """Options of the deployment.

    Ray Serve sends a replica up to `max_calls` calls, so that the replica refuses calls with a status of this service.
    """
    options: dict[str, Any] = {
        "max_ongoing_requests": config.limits.max_calls,
        "max_queued_requests": config.limits.max_calls,
        "graceful_shutdown_timeout_s": config.drain_s,
        "graceful_shutdown_wait_loop_s": 0.5,
        "max_surge_percent": 0,  # an old replica stops before a new one starts, which may need its GPU
        "max_constructor_retry_count": 3,
        "ray_actor_options": {"num_cpus": 1, "num_gpus": scale.num_gpus},
    }
    if scale.max_replicas is None:
        return options | {"num_replicas": scale.replicas}
    autoscaling = AutoscalingConfig(
        min_replicas=scale.replicas, max_replicas=scale.max_replicas, target_ongoing_requests=_CALLS_OF_A_REPLICA
    )
    return options | {"autoscaling_config": autoscaling}


class Replica:
    """Answers the calls of a replica. Ray Serve calls the Python methods that have the names of the gRPC methods.

    Args:
        settings: a ServiceConfig as JSON.
        load: `load_reranker`, or a function that replaces it.

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
        keys = KeyStore(config.keys) if config.keys else None
        calls = CallsInFlight(config.limits, keys, self._reranker.engine.accounts)
        checks = CallsInFlight(config.limits)
        observed = stack.enter_context(telemetry(self._reranker, calls))
        if observed.metrics is not None:
            from rerank.ports.http.metrics import running_metrics  # needs the extra observability

            await stack.enter_async_context(running_metrics(observed.metrics, config))
        health = await stack.enter_async_context(health_of(self._reranker))
        self._methods = RerankMethods(self._reranker, calls, observed.on_end).by_name
        self._methods |= health_methods(health, checks)
        self._calls, self._checks = calls, checks

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
        """Raises if the default model failed its self-test; Ray Serve then replaces the replica.

        Problems of inference servers do not count, because another replica would have them, too.

        Raises:
            SelfTestFailed: the model cannot be served.
        """
        model, config = next(model for model in self._reranker.models() if model.is_default), self._reranker.config
        if model.problem and not any(model.servers for model in config.models):
            raise SelfTestFailed(f"the default model {model.name!r} cannot be served; {model.problem}")

    async def _answer(self, method: str, message: bytes, context: RayServegRPCContext) -> _Serialized:
        if len(message) > self._max_message_bytes:  # the same error as gRPC's own
            context.set_code(grpc.StatusCode.RESOURCE_EXHAUSTED)
            context.set_details(f"Received message larger than max ({len(message)} vs. {self._max_message_bytes})")
            context.set_trailing_metadata([(REQUEST_ID, "")])
            return _Serialized(b"")
        call = RayCall(message, context)
        named = (REQUEST_ID, call.request_id)  # by this, the proxy also knows that a replica ended the call
        try:
            reply = await self._methods[method](call)
            context.set_trailing_metadata([named])
        except Exception as error:
            reply, error.__traceback__ = b"", None  # the traceback would keep the message in memory
            set_status(context, error, named)
        finally:
            self._calls.leave(call)
            self._checks.leave(call)
        return _Serialized(reply)


class RayCall:
    """A unary call, see `rerank.service.call.PortCall`.

    Args:
        message: the bytes of the request.
        context: Ray Serve's context of the call: peer, metadata and deadline.
    """

    def __init__(self, message: bytes, context: RayServegRPCContext) -> None:
        self._message = message
        self.peer = context.peer()
        headers = list(context.invocation_metadata())
        self.request_id, self.authorization = request_id_of(headers), only_value(headers, "authorization")
        remaining_s = float(dict(headers).get(TIME_REMAINING, math.inf))
        self.deadline_s = asyncio.get_running_loop().time() + remaining_s

    async def read(self, slot: AbstractAsyncContextManager[None]) -> bytes:
        return self._message

    def hang_up(self) -> None:
        """Does nothing: the connections belong to Ray Serve's proxy."""


@dataclass(frozen=True)
class _Serialized:
    """A message as bytes, with the method by which Ray Serve serializes replies."""

    message: bytes

    def SerializeToString(self) -> bytes:  # noqa: N802
        return self.message
