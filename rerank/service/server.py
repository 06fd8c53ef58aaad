"""The gRPC server: RerankService, health checks and reflection, with a graceful shutdown on SIGTERM."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TypeAlias

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from rerank.config import ServiceConfig
from rerank.errors import ConfigError
from rerank.registry import ModelDescription
from rerank.reranker import AsyncReranker, load_reranker
from rerank.service.connections import end_connection_of, end_connections
from rerank.service.servicer import CallsInFlight, GuardedServer, RerankServicer
from rerank.service.startup import description
from rerank.v1 import rerank_pb2, rerank_pb2_grpc

log = logging.getLogger(__name__)
#: Has one line per call; its messages are FinishedCalls.
_calls_log = logging.getLogger("rerank.calls")

SERVICE = rerank_pb2.DESCRIPTOR.services_by_name["RerankService"].full_name
HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
#: A value of the enum grpc.health.v1.HealthCheckResponse.ServingStatus.
HealthStatus: TypeAlias = int
_MAX_PORT = 65_535
#: After the drain, clients have this long to close their side of the connections; then gRPC closes them.
_GRACE_S = 1.0
#: After this time without data, gRPC asks a client whether it is still there, and waits 20 s for the reply.
_KEEPALIVE_MS = 30_000


class RunningServer:
    """A started server. `address` is HOST:PORT with the port that was bound, also if the configuration says port 0."""

    def __init__(
        self, address: str, server: grpc.aio.Server, calls: CallsInFlight, health_servicer: health.HealthServicer
    ) -> None:
        self.address = address
        self._server = server
        self.calls = calls
        self._health = health_servicer
        self._draining: asyncio.Task[None] | None = None

    async def drain(self, drain_s: float) -> None:
        """Shuts down: health becomes NOT_SERVING, new calls get UNAVAILABLE, calls in flight have `drain_s` seconds.

        Then the connections end, so that calls which arrive too late or take too long get UNAVAILABLE as well.
        A second call of this method waits for the first one to finish.
        """
        if self._draining is None:
            self._draining = asyncio.create_task(self._drain(drain_s))
        await asyncio.shield(self._draining)

    async def _drain(self, drain_s: float) -> None:
        await self._health.enter_graceful_shutdown()
        self.calls.refuse_new_calls()
        with suppress(TimeoutError):
            await asyncio.wait_for(self.calls.wait_until_idle(), drain_s)
        end_connections(int(self.address.rpartition(":")[2]))
        await self._server.stop(_GRACE_S)


@asynccontextmanager
async def running_server(reranker: AsyncReranker) -> AsyncIterator[RunningServer]:
    """Opens the reranker and serves it at the address `listen` of its configuration; drains when the block ends.

    Raises:
        ConfigError: the address cannot be bound.
    """
    config = reranker.config
    async with reranker:
        options = [
            ("grpc.max_receive_message_length", config.limits.max_message_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 0),  # so that a second server on the same port fails instead of sharing it
            ("grpc.keepalive_time_ms", _KEEPALIVE_MS),  # clients that vanished leave no connection behind
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.http2.bdp_probe", 0),  # otherwise calls whose turn to send has not come send megabytes
        ]
        server, health_servicer = grpc.aio.server(options=options), health.HealthServicer()
        calls, others = CallsInFlight(config.limits), CallsInFlight(config.limits)
        rerank_pb2_grpc.add_RerankServiceServicer_to_server(
            RerankServicer(reranker), GuardedServer(server, calls, partial(_calls_log.info, "%s"))
        )
        guarded = GuardedServer(server, others, partial(_calls_log.debug, "%s"))  # health checks come often
        health_pb2_grpc.add_HealthServicer_to_server(health_servicer, guarded)
        reflection_servicer = reflection.aio.ReflectionServicer((SERVICE, HEALTH, reflection.SERVICE_NAME))
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(reflection_servicer, guarded)
        port = _bind(server, config.listen)
        calls.on_unread_answer = partial(end_connection_of, port)
        await server.start()
        for name, status in health_statuses(reranker.models()).items():
            await health_servicer.set(name, status)
        running = RunningServer(f"{config.listen.rpartition(':')[0]}:{port}", server, calls, health_servicer)
        try:
            yield running
        finally:
            await running.drain(config.drain_s)


def health_statuses(models: Sequence[ModelDescription]) -> dict[str, HealthStatus]:
    """Service name → health status: "" and SERVICE have the default model's status, SERVICE/NAME that of each model."""
    statuses = {f"{SERVICE}/{model.name}": _health(model) for model in models}
    default = next(_health(model) for model in models if model.is_default)
    return {"": default, SERVICE: default} | statuses


def _health(model: ModelDescription) -> HealthStatus:
    return health_pb2.HealthCheckResponse.NOT_SERVING if model.problem else health_pb2.HealthCheckResponse.SERVING


def _bind(server: grpc.aio.Server, listen: str) -> int:
    """Binds the address and returns its port. Raises: ConfigError when the address cannot be bound."""
    try:
        if not 0 <= int(listen.rpartition(":")[2]) <= _MAX_PORT:  # gRPC takes larger ones modulo 65536
            raise ValueError(f"the port is not between 0 and {_MAX_PORT}")
        return server.add_insecure_port(listen)
    except (RuntimeError, ValueError) as error:
        raise ConfigError(f"cannot listen on {listen}: {error}; choose another --listen HOST:PORT") from error


async def serve(config: ServiceConfig, announce: Callable[[str], None]) -> None:
    """Serves until SIGTERM or SIGINT, then drains; a second signal stops at once.

    Args:
        config: the settings of the service.
        announce: called with the address once the service answers.

    Raises:
        ConfigError, CheckpointError, IndexMismatch: see `load_reranker` and `running_server`.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if stop.is_set():
            log.warning("second signal received: stopping without waiting for the calls in flight")
            os._exit(1)  # an exception would end the drain in order, which waits for the calls
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    reranker = load_reranker(config)
    async with running_server(reranker) as running:
        for line in description(running.address, reranker):
            log.info("%s", line)
        announce(running.address)
        await stop.wait()
        log.info("shutting down; calls in flight have up to %.0f s to finish", config.drain_s)
