"""Cost of the engine: concurrent requests and memory."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from dataclasses import replace

import psutil

from rerank.config import EngineConfig
from rerank.engine.engine import Engine
from rerank.engine.request import RankRequest
from rerank.engine.strategies import Sliding, Step
from rerank.rankers.base import Ranker
from rerank.types import Candidate, Query, Window
from scripts.bench.models import make_windows
from scripts.bench.timing import Values, ratios, time_in_turns_async
from scripts.bench.workload import PASSAGES, Workload


def measure_concurrency(workload: Workload) -> Values:
    """Requests at the same time, compared with one after the other: FIRST's long windows and PE-Rank's short ones."""
    values: Values = {}
    rankers: dict[str, Ranker] = {"first": workload.first, "pe": workload.pe_rank()}
    for model, ranker in rankers.items():
        for n in (8,) if model == "first" else (2, 4, 8):
            windows = workload.windows[:n]
            repeats = 2 if model == "first" else workload.repeats
            seconds = asyncio.run(_time_concurrency(model, ranker, windows, repeats))
            values[f"at_once_vs_in a row, {n} {model}"] = ratios(seconds["concurrent"], seconds["sequential"])
    return values


async def _time_concurrency(model: str, ranker: Ranker, windows: Sequence[Window], repeats: int) -> Values:
    async with Engine({model: ranker}, EngineConfig()) as engine:

        async def concurrent() -> None:
            await asyncio.gather(*(engine.run(_request(model, window)) for window in windows))

        async def sequential() -> None:
            for window in windows:
                await engine.run(_request(model, window))

        return await time_in_turns_async({"concurrent": concurrent, "sequential": sequential}, repeats)


def _request(model: str, window: Window) -> RankRequest:
    step = Step(model, Sliding(PASSAGES, PASSAGES // 2))
    return RankRequest(window.query, tuple(map(Candidate, window.passages)), (step,))


def measure_memory(workload: Workload) -> Values:
    """Growth of the process in MB over 2,000 requests with different queries, after 200 requests as a warm-up."""
    # A tiny model shows memory that is kept by mistake as well as a large one.
    tiny = replace(workload, folder=workload.folder / "small", quick=True)
    return {"memory after 2,000 requests": [asyncio.run(_memory_growth_mb(tiny, 20 if workload.quick else 2000))]}


async def _memory_growth_mb(workload: Workload, requests: int) -> float:
    rankers: dict[str, Ranker] = {"first": workload.first, "pe": workload.pe_rank(dynamic=True)}
    windows = make_windows(workload.encoder, 50, PASSAGES, words=8)
    before_mb = 0.0
    async with Engine(rankers, EngineConfig()) as engine:
        for number in range(-(requests // 10), requests):
            if number == 0:
                before_mb = _resident_mb()
            window = windows[number % len(windows)]
            window = replace(window, query=Query(f"{window.query.text} {number}"))
            await engine.run(_request("first" if number % 2 else "pe", window))
        return _resident_mb() - before_mb


def _resident_mb() -> float:
    gc.collect()
    return float(psutil.Process().memory_info().rss) / 1e6
