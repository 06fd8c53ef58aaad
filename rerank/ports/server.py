"""The server of a process: opens the ports of a service, and shuts down gracefully on SIGTERM."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from functools import partial

import grpc

from rerank.access.keys import KeyStore
from rerank.config import ServiceConfig
from rerank.engine.engine import Engine
from rerank.ports.connections import (
    bounded_connections,
    end_connection_of,
    end_connections,
    max_connections,
    raise_open_files_limit,
)
from rerank.ports.grpc.server import add_services, bind, server_options
from rerank.ports.health import Health, health_of
from rerank.reranking.reranker import AsyncReranker, load_reranker
from rerank.service.limits import CallsInFlight
from rerank.service.startup import description
from rerank.telemetry.setup import Telemetry, telemetry
from rerank.util.signals import end_at_once, ending_signals

log = logging.getLogger(__name__)

#: Seconds after the drain until gRPC closes connections that clients have not closed.
_GRACE_S = 1.0
#: A drain ends calls without an answer if their estimated time exceeds the time left multiplied by this number. It is
#: above 1, because the estimate comes from the speed of earlier requests.
_LATE = 1.5
#: Seconds between two estimates in a drain.
_ESTIMATED_EACH_S = 1.0
#: Seconds until a call that was ended has left the queue.
_LEAVING_S = 0.02
#: Seconds after which a thread that computes in Python lets the event loop run; Python's default is 5 ms.
_SWITCH_S = 0.001


class RunningServer:
    """A started server.

    Args:
        address: HOST:PORT of the gRPC port, with the bound port even if the configuration has port 0.
        http_address: HOST:PORT of the HTTP port; empty if there is none.
        metrics_address: HOST:PORT of /metrics; empty if there is none.
        server: the gRPC server.
        calls: the calls in flight.
        health: answers the health checks.
        engine: runs the requests.
    """

    def __init__(
        self,
        address: str,
        http_address: str,
        metrics_address: str,
        server: grpc.aio.Server,
        calls: CallsInFlight,
        health: Health,
        engine: Engine,
    ) -> None:
        self.address, self.http_address, self.metrics_address = address, http_address, metrics_address
        self.calls = calls
        self._server, self._health, self._engine = server, health, engine
        self._draining: asyncio.Task[None] | None = None
        #: Number of calls that the drain has ended without an answer.
        self.unanswered = 0

    async def drain(self, drain_s: float) -> None:
        """Shuts down: health becomes NOT_SERVING, new calls get UNAVAILABLE, calls in flight have `drain_s` seconds.

        If the calls in flight probably take longer, the latest of them get UNAVAILABLE at once. After `drain_s`, the
        connections end, so that calls that are late or take too long get UNAVAILABLE, too; over HTTP, 503. A second
        call of this method waits until the first has finished.
        """
        if self._draining is None:
            self._draining = asyncio.create_task(self._drain(drain_s))
        await asyncio.shield(self._draining)

    async def _drain(self, drain_s: float) -> None:
        self._health.shut_down()
        self.calls.begin_drain()
        with suppress(TimeoutError):
            async with asyncio.timeout(drain_s) as limit:
                while self.calls.number:
                    await self._end_late_calls(limit)
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self.calls.wait_until_idle(), _ESTIMATED_EACH_S)
        self.unanswered += self.calls.number
        self.calls.end_drain()
        end_connections(int(self.address.rpartition(":")[2]))
        await self._server.stop(_GRACE_S)

    async def _end_late_calls(self, limit: asyncio.Timeout) -> None:
        """Ends the latest calls until the estimated time of the others is little more than the time left."""
        end_s = limit.when() or 0.0
        while self._engine.remaining_s > _LATE * (end_s - asyncio.get_running_loop().time()):
            if not self.calls.end_latest():
                return
            self.unanswered += 1
            await asyncio.sleep(_LEAVING_S)


@asynccontextmanager
async def running_server(reranker: AsyncReranker) -> AsyncIterator[RunningServer]:
    """Opens the reranker and serves it at the address `listen` of its configuration; drains when the block ends.

    Raises:
        ConfigError: the address cannot be bound, or a file of the keys or of the TLS settings cannot be used.
    """
    config = reranker.config
    async with reranker, AsyncExitStack() as stack:
        keys = KeyStore(config.keys) if config.keys else None
        calls = CallsInFlight(config.limits, keys, reranker.engine.accounts)
        observed = stack.enter_context(telemetry(reranker, calls))
        server = grpc.aio.server(options=server_options(config), interceptors=observed.interceptors)
        health = await stack.enter_async_context(health_of(reranker))
        port = bind(server, config)
        add_services(server, reranker, calls, observed.on_end, health, partial(end_connection_of, port))
        stack.enter_context(bounded_connections(port, max_connections(config), calls.peers))
        await server.start()
        stack.push_async_callback(server.stop, None)  # if a port below cannot be opened
        address = f"{config.listen.rpartition(':')[0]}:{port}"
        http_address = await stack.enter_async_context(_http(reranker, calls, observed)) if config.http else ""
        metrics_address = ""
        if observed.metrics is not None:
            from rerank.ports.http.metrics import running_metrics  # needs the extra observability

            metrics_address = await stack.enter_async_context(running_metrics(observed.metrics, config))
        running = RunningServer(address, http_address, metrics_address, server, calls, health, reranker.engine)
        try:
            yield running
        finally:
            await running.drain(config.drain_s)


def _http(reranker: AsyncReranker, calls: CallsInFlight, observed: Telemetry) -> AbstractAsyncContextManager[str]:
    from rerank.ports.http.server import running_http  # needs the extra http

    return running_http(reranker, calls, observed.on_end, observed.wrap_app)


def _favour_event_loop() -> None:
    """Shortens the time that threads and the garbage collector keep the event loop waiting.

    A full collection would walk through all objects of the imported packages, some 0.5 s, again and again.
    """
    sys.setswitchinterval(_SWITCH_S)
    gc.collect()
    gc.freeze()


def _flush_log() -> None:
    for handler in logging.getLogger().handlers:
        handler.flush()


async def serve(config: ServiceConfig, announce: Callable[[str], None]) -> None:
    """Serves until SIGTERM, SIGINT or SIGHUP, then drains; a second signal stops at once.

    SIGHUP, which a terminal sends when it is closed, has no effect under `nohup`. While models are loaded, a signal
    ends the process at once, even while a library holds the interpreter. After that and before the service answers, for
    example while it waits for an inference server, a signal ends the start.

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
            logging.shutdown()
            os._exit(1)  # an exception would end the drain in order, which waits for the calls
        stop.set()

    raise_open_files_limit()
    ends = [*ending_signals(), signal.SIGINT]
    end_at_once(ends)
    reranker = load_reranker(config)
    for number in ends:
        loop.add_signal_handler(number, on_signal)
    _favour_event_loop()
    async with AsyncExitStack() as stack:
        opening = asyncio.create_task(stack.enter_async_context(running_server(reranker)))
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({opening, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not opening.done():
            log.info("stopping; the service has not answered yet")
            opening.cancel()
            await asyncio.wait({opening})
            return
        running = opening.result()
        for line in description(running.address, reranker):
            log.info("%s", line)
        log.info("connections: %d of a port", max_connections(config))
        if running.http_address:
            log.info("HTTP at %s://%s", "http" if config.tls is None else "https", running.http_address)
        if running.metrics_address:
            log.info("metrics at http://%s/metrics", running.metrics_address)
        _flush_log()  # whoever waits for the address may read the others in the log
        announce(running.address)
        await stopping
        log.info("shutting down; calls in flight have up to %.0f s to finish", config.drain_s)
        _flush_log()  # before the first call is refused
    log.info("stopped; calls that ended without an answer: %d", running.unanswered)
