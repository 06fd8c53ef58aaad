"""A connection of an attack or a probe to the service, and the outcomes of its calls."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import grpc

from rerank.v1 import rerank_pb2 as pb
from rerank.v1 import rerank_pb2_grpc

#: How long an attack that sends again and again goes on.
LENGTH_S = 15.0
#: Messages of any length, and a new connection for each channel.
_OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
]


class Target:
    """A connection to the service. Use it in an `async with` block.

    Args:
        address: HOST:PORT of gRPC.
        http_address: HOST:PORT of HTTP.
        metrics_address: HOST:PORT of /metrics.
        folder: has what `ServiceOf.prepare` wrote.
    """

    def __init__(self, address: str, http_address: str, metrics_address: str = "", folder: Path = Path()) -> None:
        self.address, self.http_address, self.metrics_address = address, http_address, metrics_address
        self.folder = folder
        self.channel = grpc.aio.insecure_channel(address, options=_OPTIONS)
        #: Typed Any, because the generated stubs are typed for a blocking channel.
        self._stub: Any = rerank_pb2_grpc.RerankServiceStub(self.channel)

    async def __aenter__(self) -> Target:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.channel.close()

    def another(self) -> Target:
        """A further connection to the same service."""
        return Target(self.address, self.http_address, self.metrics_address, self.folder)

    async def rerank(self, message: pb.RerankRequest, timeout_s: float) -> str:
        """The status of a Rerank call, such as "OK"."""
        return await status_of(self._stub.Rerank(message, timeout=timeout_s))

    async def search(self, query: str, model: str, timeout_s: float) -> str:
        """The status of a Search call."""
        return await status_of(self._stub.Search(pb.SearchRequest(query=query, model=model), timeout=timeout_s))

    async def cancelled_rerank(self, message: pb.RerankRequest, after_s: float) -> str:
        """The status of a Rerank call that is cancelled after some time."""
        call = self._stub.Rerank(message)
        asyncio.get_running_loop().call_later(after_s, call.cancel)
        return await status_of(call)


#: Runs an attack until it ends; returns how often its calls ended with each status, such as {"OK": 3, "CANCELLED": 1}.
Attack: TypeAlias = Callable[[Target], Awaitable[Counter[str]]]


@dataclass(frozen=True)
class ServiceOf:
    """The service that an attack is made on.

    Attributes:
        prepare: writes files to a folder, or starts servers, and yields settings next to the usual ones; its `models`
            are served beside the usual ones.
        open_files: the number of files that it may open; None: as many as this process.
    """

    prepare: Callable[[Path], AbstractContextManager[Mapping[str, object]]] | None = None
    open_files: int | None = None


#: Attacks on another service than the usual one.
SERVICES: dict[Attack, ServiceOf] = {}


def served_by(service: ServiceOf) -> Callable[[Attack], Attack]:
    """Decorates an attack on this service."""

    def registered(attack: Attack) -> Attack:
        SERVICES[attack] = service
        return attack

    return registered


def run_attack(attack: Attack, address: str, http_address: str, metrics_address: str, folder: Path) -> Counter[str]:
    """Runs an attack on a service with these addresses, see Target; for a separate process."""

    async def attacked() -> Counter[str]:
        async with Target(address, http_address, metrics_address, folder) as target:
            return await attack(target)

    return asyncio.run(attacked())


async def status_of(call: Any) -> str:
    """The name of the status that a call ends with."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return str(error.code().name)
    except asyncio.CancelledError:
        return "CANCELLED"
    return "OK"


async def outcomes(calls: Iterable[Awaitable[str]]) -> Counter[str]:
    """Awaits calls, all at once, and counts the statuses that they end with."""
    return Counter(await asyncio.gather(*calls))


async def repeated(send: Callable[[], Awaitable[str]], at_once: int, stays: bool = False) -> Counter[str]:
    """The statuses of calls that follow one another for LENGTH_S, `at_once` at a time.

    Args:
        stays: whether a call may last longer: it is then given up at the end, and counts as open.
    """
    end_s, ends = time.monotonic() + LENGTH_S, Counter[str]()

    async def repeat() -> None:
        while time.monotonic() < end_s:
            status = "open"
            with suppress(TimeoutError):
                async with asyncio.timeout(end_s - time.monotonic() if stays else None) as limit:
                    status = await send()
            ends["open" if limit.expired() else status] += 1

    await asyncio.gather(*(repeat() for _ in range(at_once)))
    return ends


def address_of(target: str) -> tuple[str, int]:
    """Host and port of HOST:PORT."""
    host, _, port = target.rpartition(":")
    return host, int(port)
