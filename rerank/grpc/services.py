"""The services over one reranker: RerankService and the health checks, in gRPC's server or a replica of Ray Serve."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from grpc_health.v1 import health_pb2_grpc

from rerank.access.keyed_calls import KeyedCalls
from rerank.access.keys import KeyStore
from rerank.config import ServiceConfig
from rerank.grpc.health import HealthServicer
from rerank.grpc.servicer import CallsInFlight, GuardedServer, OnEnd, RerankServicer
from rerank.reranker import AsyncReranker
from rerank.v1 import rerank_pb2_grpc

log = logging.getLogger(__name__)


def calls_in_flight(config: ServiceConfig) -> CallsInFlight:
    """The limits of calls, which need a key if the configuration has keys. Raises: ConfigError about the keys' file."""
    return CallsInFlight(config.limits) if config.keys is None else KeyedCalls(config.limits, KeyStore(config.keys))


def guarded_quietly(server: Any, config: ServiceConfig) -> GuardedServer:
    """Registers services whose calls need no key and are logged at level DEBUG, because health checks come often."""
    return GuardedServer(server, CallsInFlight(config.limits), partial(log.debug, "%s"))


async def add_services(
    server: Any, reranker: AsyncReranker, calls: CallsInFlight, on_end: OnEnd, stack: AsyncExitStack
) -> HealthServicer:
    """Registers the services. The health statuses follow the models until the stack closes.

    Args:
        server: a grpc.aio.Server, or what registers methods like it.
        reranker: answers the calls.
        calls: the limits of calls of RerankService.
        on_end: called when such a call has ended.
        stack: ends what runs in the background.
    """
    guarded = GuardedServer(server, calls, on_end)
    rerank_pb2_grpc.add_RerankServiceServicer_to_server(RerankServicer(reranker), guarded)
    health = HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health, guarded_quietly(server, reranker.config))
    await health.set_statuses(reranker.models())
    if any(getattr(model, "served_by", None) for model in reranker.config.models):
        stack.callback(asyncio.create_task(health.follow(reranker.models)).cancel)
    return health
