"""Builds the server from its configuration: service, health, reflection; drains on SIGTERM."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health
from grpc_reflection.v1alpha import reflection

from rerank.config import ServiceConfig
from rerank.errors import ConfigError
from rerank.reranker import AsyncReranker, load_reranker
from rerank.service.servicer import RerankServicer
from rerank.service.status import StatusInterceptor
from rerank.v1 import rerank_pb2, rerank_pb2_grpc

log = logging.getLogger(__name__)

SERVICE = rerank_pb2.DESCRIPTOR.services_by_name["RerankService"].full_name
HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name


@dataclass(frozen=True)
class RunningServer:
    """A server that answers. `address` names the port that was bound, also when port 0 was asked for."""

    address: str
    server: grpc.aio.Server
    servicer: RerankServicer
    health: health.HealthServicer

    async def drain(self, drain_s: float) -> None:
        """Health says NOT_SERVING, new calls get UNAVAILABLE, those in flight have `drain_s` seconds to finish."""
        await self.health.enter_graceful_shutdown()
        stopping = asyncio.create_task(self.server.stop(drain_s))
        with suppress(TimeoutError):
            await asyncio.wait_for(self.servicer.wait_until_idle(), drain_s)
        await self.server.stop(0)  # streams that watch the health would otherwise hold the server to the end
        await stopping


@asynccontextmanager
async def running_server(closed: AsyncReranker) -> AsyncIterator[RunningServer]:
    """Opens the reranker and answers at its configuration's `listen` until the block ends, then drains.

    Raises:
        ConfigError: the address cannot be bound.
    """
    config = closed.config
    async with closed as reranker:
        options = [
            ("grpc.max_receive_message_length", config.limits.max_message_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 0),  # a second server on the same port must fail, not share it
        ]
        server = grpc.aio.server(interceptors=[StatusInterceptor()], options=options)
        servicer, health_servicer = RerankServicer(reranker), health.HealthServicer()
        rerank_pb2_grpc.add_RerankServiceServicer_to_server(servicer, server)
        health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
        reflection.enable_server_reflection((SERVICE, HEALTH, reflection.SERVICE_NAME), server)
        try:
            port = server.add_insecure_port(config.listen)
        except RuntimeError as error:
            raise ConfigError(
                f"cannot listen on {config.listen}: {error}; choose another --listen HOST:PORT"
            ) from error
        await server.start()
        for name in ("", SERVICE):
            await health_servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
        running = RunningServer(f"{config.listen.rpartition(':')[0]}:{port}", server, servicer, health_servicer)
        try:
            yield running
        finally:
            await running.drain(config.drain_s)


async def serve(config: ServiceConfig, announce: Callable[[str], None]) -> None:
    """Runs until SIGTERM or SIGINT, then drains; a second signal ends at once. Raises as `load_reranker` does."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if stop.is_set():
            raise SystemExit("second signal: stopping without waiting for calls in flight")
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    async with running_server(load_reranker(config)) as running:
        announce(running.address)
        await stop.wait()
        log.info("stopping; calls in flight have up to %.0f s", config.drain_s)
