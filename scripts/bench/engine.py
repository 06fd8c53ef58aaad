"""Cost of the engine and the service: concurrent requests, gRPC, and memory."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

import psutil

from rerank.client.client import AsyncRerankClient
from rerank.config import EngineConfig, FirstModel, PERankModel, ServiceConfig
from rerank.engine.engine import Engine
from rerank.engine.request import RankRequest
from rerank.engine.strategies import Sliding, Step
from rerank.ports.server import running_server
from rerank.rankers.base import Ranker
from rerank.reranking.registry import ModelRegistry
from rerank.reranking.reranker import AsyncReranker
from rerank.types import Candidate, Passage, Query, Window
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


def measure_service(workload: Workload) -> Values:
    """Eight concurrent requests through gRPC on localhost, compared with the engine alone."""
    return asyncio.run(_measure_service(workload))


def _reranker(workload: Workload, rankers: Mapping[str, Ranker]) -> AsyncReranker:
    """A reranker with the rankers "first" and "pe", to be served on free ports."""
    models = (
        FirstModel(name="first", ranker="first", path=workload.checkpoint),
        PERankModel(name="pe", ranker="pe-rank", path=workload.checkpoint),
    )
    config = ServiceConfig(listen="127.0.0.1:0", models=models)
    return AsyncReranker(config, workload.encoder, None, ModelRegistry(config.models, rankers))


async def _measure_service(workload: Workload) -> Values:
    rankers: dict[str, Ranker] = {"first": workload.first, "pe": workload.pe_rank()}
    reranker = _reranker(workload, rankers)
    # Requests hold texts, so PE-Rank encodes the passages with and without gRPC; short ones keep that cost low.
    windows = {"first": workload.windows, "pe": make_windows(workload.encoder, 8, PASSAGES, words=6)}
    values: Values = {}
    async with (
        running_server(reranker) as server,
        AsyncRerankClient(server.address) as client,
        Engine(rankers, EngineConfig()) as engine,
    ):
        for model in rankers:
            without_vectors = [_without_vectors(window) for window in windows[model]]
            variants = {
                "service": _requests(client, model, without_vectors),
                "engine": _jobs(engine, model, without_vectors),
            }
            repeats = 1 if workload.quick else 2 if model == "first" else 6
            seconds = await time_in_turns_async(variants, repeats)
            values[f"service_vs_engine, {model}"] = ratios(seconds["service"], seconds["engine"])
    return values


def _requests(client: AsyncRerankClient, model: str, windows: Sequence[Window]) -> Callable[[], Awaitable[object]]:
    """Sends all windows to the service at the same time."""
    texts = [(window.query.text, [(p.doc_id, p.text) for p in window.passages]) for window in windows]

    async def send() -> None:
        await asyncio.gather(*(client.rerank(query, passages, model=model) for query, passages in texts))

    return send


def _jobs(engine: Engine, model: str, windows: Sequence[Window]) -> Callable[[], Awaitable[object]]:
    """Runs all windows in the engine at the same time."""

    async def run() -> None:
        await asyncio.gather(*(engine.run(_request(model, window)) for window in windows))

    return run


def _without_vectors(window: Window) -> Window:
    return Window(window.query, tuple(Passage(passage.doc_id, passage.text) for passage in window.passages))


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
