"""Calls that arrive while the service drains: each is answered or gets UNAVAILABLE, which clients retry."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack

import grpc
import pytest

from rerank.models.encoder import Encoder
from rerank.rankers.identity import IdentityRanker
from rerank.v1 import rerank_pb2 as pb
from rerank.v1.rerank_pb2_grpc import RerankServiceStub
from tests.serving import TIMEOUT_S, reranker_of, serving

#: Each client has its own connection and this number of calls in flight at any time.
CLIENTS, CALLS = 3, 40


async def call_without_pause(
    address: str, statuses: Counter[grpc.StatusCode], busy: threading.Event, stop: threading.Event
) -> None:
    """Calls the service until `stop` is set and it is gone, and counts the statuses; sets `busy` on the way."""

    async def calls(stub: RerankServiceStub) -> None:
        code = grpc.StatusCode.OK
        while code is grpc.StatusCode.OK or not stop.is_set():
            code = await stub.ListModels(pb.ListModelsRequest(), timeout=TIMEOUT_S).code()
            statuses[code] += 1
            if statuses.total() > CLIENTS * CALLS:
                busy.set()

    async with AsyncExitStack() as stack:
        own = [("grpc.use_local_subchannel_pool", 1)]
        channels = [grpc.aio.insecure_channel(address, options=own) for _ in range(CLIENTS)]
        stubs = [RerankServiceStub(await stack.enter_async_context(channel)) for channel in channels]
        await asyncio.gather(*(calls(stub) for stub in stubs * CALLS))


@pytest.mark.parametrize("drain_s", [0.0, 5.0])
def test_calls_during_a_drain_are_answered_or_unavailable(encoder: Encoder, drain_s: float) -> None:
    statuses, busy, stop = Counter[grpc.StatusCode](), threading.Event(), threading.Event()
    with (
        serving(reranker_of(encoder, {"identity": IdentityRanker()})) as served,
        ThreadPoolExecutor() as pool,
    ):
        clients = pool.submit(asyncio.run, call_without_pause(served.address, statuses, busy, stop))
        try:
            assert busy.wait(TIMEOUT_S)
            served.wait(served.server.drain(drain_s))
        finally:
            stop.set()
        clients.result(TIMEOUT_S)
    assert set(statuses) == {grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE}, statuses
