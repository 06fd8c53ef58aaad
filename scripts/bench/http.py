"""Cost of HTTP: the same requests through the HTTP port and through gRPC, more at a time than the model can serve."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence

from rerank.client.client import AsyncRerankClient
from rerank.config.http import HttpConfig
from rerank.grpc.server import running_server
from rerank.rankers.base import Ranker
from rerank.types import Window
from scripts.bench.engine import reranker_of
from scripts.bench.models import make_windows
from scripts.bench.timing import Values, ratios, time_in_turns_async
from scripts.bench.workload import PASSAGES, Workload
from scripts.service import connect

#: Requests in flight, each on a kept connection of its own for HTTP.
_IN_FLIGHT = 16


def measure_http(workload: Workload) -> Values:
    """Requests through HTTP (Cohere's API v2), compared with gRPC: CPU time of client and service together."""
    return asyncio.run(_measure(workload))


async def _measure(workload: Workload) -> Values:
    rankers: dict[str, Ranker] = {"first": workload.first, "pe": workload.pe_rank()}
    reranker = reranker_of(workload, rankers, HttpConfig(listen="127.0.0.1:0"))
    windows = {
        "first": workload.windows,
        "pe": make_windows(workload.encoder, 4 if workload.quick else 64, PASSAGES, words=40),
    }
    values: Values = {}
    async with running_server(reranker) as server, AsyncRerankClient(server.address) as client:
        for model in rankers:
            variants = {
                "http": _http(server.http_address, model, windows[model]),
                "grpc": _grpc(client, model, windows[model]),
            }
            seconds = await time_in_turns_async(variants, 2 if model == "first" else workload.repeats)
            values[f"http_vs_grpc, {model}"] = ratios(seconds["http"], seconds["grpc"])
    return values


def _grpc(client: AsyncRerankClient, model: str, windows: Sequence[Window]) -> Callable[[], Awaitable[object]]:
    texts = [(window.query.text, [passage.text for passage in window.passages]) for window in windows]

    async def send(worker: int) -> None:
        for query, passages in texts[worker::_IN_FLIGHT]:
            await client.rerank(query, passages, model=model)

    return _at_once(send)


def _http(address: str, model: str, windows: Sequence[Window]) -> Callable[[], Awaitable[object]]:
    bodies = [
        json.dumps({"model": model, "query": window.query.text, "documents": [each.text for each in window.passages]})
        for window in windows
    ]

    async def send(worker: int) -> None:
        if not bodies[worker::_IN_FLIGHT]:
            return
        reader, writer = await connect(address)
        for body in bodies[worker::_IN_FLIGHT]:
            await _exchange(reader, writer, body.encode())
        writer.close()
        await writer.wait_closed()

    return _at_once(send)


async def _exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: bytes) -> None:
    """Sends a request and reads its answer. Raises: RuntimeError if the answer is no 200."""
    head = ["POST /v2/rerank HTTP/1.1", "host: localhost", "content-type: application/json"]
    writer.write("\r\n".join([*head, f"content-length: {len(body)}", "", ""]).encode() + body)
    status, *headers = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
    length = next(header.partition(":")[2] for header in headers if header.startswith("content-length:"))
    answer = json.loads(await reader.readexactly(int(length)))
    if " 200 " not in status:
        raise RuntimeError(f"{status}: {answer}")


def _at_once(send: Callable[[int], Awaitable[None]]) -> Callable[[], Awaitable[object]]:
    async def run() -> None:
        await asyncio.gather(*(send(worker) for worker in range(_IN_FLIGHT)))

    return run
