"""The service as an attack and an honest caller see it: calls, raw connections, and how they end."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from rerank.v1 import rerank_pb2 as pb
from rerank.v1 import rerank_pb2_grpc

#: How long an attack that sends again and again goes on.
LENGTH_S = 15.0
#: Pause before a connection is tried again that was refused.
_RETRY_S = 0.05
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
        folder: has what `Attack.prepare` wrote.
    """

    def __init__(self, address: str, http_address: str = "", metrics_address: str = "", folder: Path = Path()) -> None:
        self.address, self.http_address, self.metrics_address = address, http_address, metrics_address
        self.folder = folder
        self.channel = grpc.aio.insecure_channel(address, options=_OPTIONS)
        #: Typed Any, because the generated stubs are typed for a blocking channel.
        self._stub: Any = rerank_pb2_grpc.RerankServiceStub(self.channel)

    async def __aenter__(self) -> Target:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.channel.close()

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


@dataclass(frozen=True)
class Attack:
    """An attack, and the service that it is made on.

    Attributes:
        run: attacks until it ends; returns how often its calls ended with each status, such as
            {"OK": 3, "CANCELLED": 1}.
        prepare: writes files to a folder, or starts servers, and yields settings next to the usual ones; its `models`
            are served beside the usual ones.
        open_files: the number of files that the service may open; None: as many as this process.
    """

    run: Callable[[Target], Coroutine[Any, Any, Counter[str]]]
    prepare: Callable[[Path], AbstractContextManager[Mapping[str, object]]] | None = None
    open_files: int | None = None


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


async def held(
    addresses: Iterable[str], first: bytes, then: bytes = b"", source: tuple[str, int] | None = None
) -> Counter[str]:
    """Holds a raw connection to each address for LENGTH_S; one that ends is opened again.

    Returns how often one was refused or ended, and how many are open in the end.

    Args:
        first: is sent when a connection is open.
        then: is sent for all that a connection receives.
        source: the address that they come from; None: that of the honest caller.
    """
    end_s, ends = time.monotonic() + LENGTH_S, Counter[str]()

    async def hold(address: str) -> None:
        async for reader, writer in connections(address, end_s, ends, source):
            try:
                async with asyncio.timeout(end_s - time.monotonic()) as limit:
                    writer.write(first)
                    while await reader.read(65_536):
                        writer.write(then)
            except (OSError, TimeoutError):
                pass
            ends["open" if limit.expired() else "ended by the service"] += 1

    await asyncio.gather(*map(hold, addresses))
    return ends


async def connections(
    address: str, end_s: float, ends: Counter[str], source: tuple[str, int] | None = None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Opens connections one after another until a time, and ends each before the next; counts those refused."""
    while time.monotonic() < end_s:
        try:
            reader, writer = await asyncio.open_connection(*address_of(address), local_addr=source)
        except OSError:
            ends["refused"] += 1
            await asyncio.sleep(_RETRY_S)
            continue
        yield reader, writer
        writer.transport.abort()


def address_of(target: str) -> tuple[str, int]:
    """Host and port of HOST:PORT."""
    host, _, port = target.rpartition(":")
    return host, int(port)
