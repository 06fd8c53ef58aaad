"""Calls that arrive while the service drains: each is answered or gets UNAVAILABLE, which clients retry."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter

import grpc
import pytest

from rerank.models.encoder import Encoder
from rerank.rankers.identity import IdentityRanker
from rerank.v1 import rerank_pb2 as pb
from rerank.v1.rerank_pb2_grpc import RerankServiceStub
from tests.serving import TIMEOUT_S, reranker_of, serving

#: Each client has its own connection and this number of calls in flight at any time.
CLIENTS, CALLS = 3, 40


class Clients:
    """Clients that call the service without pause until `stop` is set and it is gone; counts the statuses."""

    def __init__(self, address: str) -> None:
        self.statuses: Counter[grpc.StatusCode] = Counter()
        self.stop = threading.Event()
        self.busy = threading.Event()
        self._address = address

    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        await asyncio.gather(*(self._client() for _ in range(CLIENTS)))

    async def _client(self) -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(self._address, options=options) as channel:
            await asyncio.gather(*(self._calls(RerankServiceStub(channel)) for _ in range(CALLS)))

    async def _calls(self, stub: RerankServiceStub) -> None:
        code = grpc.StatusCode.OK
        while code is grpc.StatusCode.OK or not self.stop.is_set():
            code = await stub.ListModels(pb.ListModelsRequest(), timeout=TIMEOUT_S).code()
            self.statuses[code] += 1
            if self.statuses.total() > CLIENTS * CALLS:
                self.busy.set()


@pytest.mark.parametrize("drain_s", [0.0, 5.0])
def test_calls_during_a_drain_are_answered_or_unavailable(encoder: Encoder, drain_s: float) -> None:
    with serving(reranker_of(encoder, {"identity": IdentityRanker()})) as served:
        clients = Clients(served.address)
        thread = threading.Thread(target=clients.run)
        thread.start()
        try:
            assert clients.busy.wait(TIMEOUT_S)
            served.wait(served.server.drain(drain_s))
        finally:
            clients.stop.set()
            thread.join()
    assert set(clients.statuses) == {grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE}, clients.statuses
