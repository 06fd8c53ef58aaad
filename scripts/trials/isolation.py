"""Isolation: latency of short requests beside one request of the worst allowed size, and without it."""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from statistics import median

from attacks.calls import Target
from attacks.server import running_service

from rerank.access.credentials import PLAIN
from rerank.load_test.open_loop import Call, LoadReport, open_loop
from rerank.load_test.requests import made_request, rerank_calls
from rerank.v1 import rerank_pb2 as pb

HEADER = """| short requests to | beside one of | p50 alone (ms) | beside | p99 alone (ms) | beside | ratio | failed |
| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |"""

_TIMEOUT_S = 120.0
#: Short requests keep the model busy for this share of the time.
_SHARE = 0.3
#: Each uses up a limit of requests: the size of the message, the candidates, the length of a passage, the windows.
#: With partial answers allowed, admission control refuses none of them.
WORST: dict[str, Callable[[random.Random], pb.RerankRequest]] = {
    "pe-rank, 1,000 passages of 16,000 characters": lambda draw: made_request(
        draw, "pe-rank", 1000, 16_000, allow_partial=True
    ),
    "first, 80 passages of 200,000 characters": lambda draw: made_request(
        draw, "first", 80, 200_000, allow_partial=True
    ),
    "first, 100 passages of 2,000 characters in sliding windows": lambda draw: made_request(
        draw, "first", 100, 2000, allow_partial=True, strategy=pb.Strategy(kind="STRATEGY_KIND_SLIDING")
    ),
    "identity, tournament of 2 over 1,000 passages": lambda draw: made_request(
        draw, "identity", 1000, 4, strategy=pb.Strategy(kind="STRATEGY_KIND_TOURNAMENT", window_size=2)
    ),
}


async def isolation(models: list[str], worst: list[str], requests: int, seed: int) -> AsyncIterator[str]:
    """Rows of the table: so many short requests to each model, alone and beside each of the worst ones."""
    with running_service() as service:
        for model in models:
            short = made_request(random.Random(seed), model, 5, 200)
            async with rerank_calls(service.address, PLAIN, [short], _TIMEOUT_S) as call:
                spacing_s = median([await _seconds(call) for _ in range(10)]) / _SHARE
                alone = await _evenly(call, requests, spacing_s)
                for name in worst:
                    with _again_and_again(name, service.address, seed):
                        await asyncio.sleep(spacing_s)
                        beside = await _evenly(call, requests, spacing_s)
                    yield _row(model, name, alone, beside)


async def _evenly(call: Call, requests: int, spacing_s: float) -> LoadReport:
    return await open_loop(call, [spacing_s * number for number in range(requests)], spacing_s * requests)


async def _seconds(call: Call) -> float:
    start_s = time.perf_counter()
    await call(0)
    return time.perf_counter() - start_s


@contextmanager
def _again_and_again(name: str, address: str, seed: int) -> Iterator[None]:
    """Another process sends one of the worst requests in the block, and again whenever it was answered."""
    process = multiprocessing.get_context("spawn").Process(target=_send_forever, args=(name, address, seed))
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


def _send_forever(name: str, address: str, seed: int) -> None:
    async def send() -> None:
        message = WORST[name](random.Random(seed))
        async with Target(address) as target:
            while True:
                await target.rerank(message, _TIMEOUT_S)

    asyncio.run(send())


def _row(model: str, name: str, alone: LoadReport, beside: LoadReport) -> str:
    percentiles = [report.percentile_ms(percent) for percent in (50, 99) for report in (alone, beside)]
    ratio = percentiles[3] / percentiles[2]
    failed = len(beside.calls) - beside.statuses["OK"]
    return f"| {model} | {name} | {' | '.join(f'{ms:.0f}' for ms in percentiles)} | {ratio:.1f} | {failed} |"
