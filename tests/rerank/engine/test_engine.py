"""Engine: rankings, batches, threads and times. Concurrent requests do not change each other's results."""

import asyncio
import threading
from collections import defaultdict

import pytest

from rerank.config import EngineConfig
from rerank.engine.strategies import Single, Sliding, Strategy
from rerank.types import Completeness
from tests.fakes import NumberRanker, run_schedule
from tests.rerank.engine.harness import (
    LARGE_BATCHES,
    ONE_BY_ONE,
    SLIDING,
    Blocks,
    engine_for,
    held_engine,
    positions,
    request_for,
    shuffled,
    start,
    wait_for_queue,
)


@pytest.mark.parametrize("strategy", [SLIDING, Sliding(5, 2), Single(20), Blocks(7)], ids=str)
@pytest.mark.parametrize("n", [1, 2, 7, 19, 20, 21, 30, 57, 100])
async def test_ranking_is_that_of_the_strategy(strategy, n):
    numbers = shuffled(n)
    rounds, order = run_schedule(strategy, lambda window: [numbers[position] for position in window], n)
    windows = [window for round_ in rounds for window in round_.windows]
    async with engine_for(NumberRanker()) as engine:
        ranking = await engine.run(request_for(numbers, strategy))
    assert positions(ranking) == order
    assert [window.positions for window in ranking.trace.windows] == windows
    assert [window.tokens for window in ranking.trace.windows] == [10 * len(window) for window in windows]
    assert ranking.trace.rounds == (1 if isinstance(strategy, Blocks) else len(windows))


@pytest.mark.parametrize("strategy", [SLIDING, Single(20)], ids=str)
async def test_empty_list_runs_no_window(strategy):
    ranker = NumberRanker()
    async with engine_for(ranker) as engine:
        ranking = await engine.run(request_for([], strategy))
    assert (ranking.ranked, ranking.trace.windows, ranking.trace.rounds) == ((), (), 0)
    assert ranking.trace.completeness is Completeness.FULL
    assert ranker.ranked == []


@pytest.mark.parametrize("config", [LARGE_BATCHES, ONE_BY_ONE, EngineConfig(max_batch_tokens=500)], ids=str)
async def test_concurrent_requests_get_the_rankings_that_they_get_alone(config):
    strategies: list[Strategy] = [SLIDING, Sliding(5, 2), Single(20), Blocks(7)]
    asked = [(shuffled(7 * seed, seed), strategies[seed % 4]) for seed in range(1, 25)]
    async with engine_for(NumberRanker(), config) as engine:
        together = await asyncio.gather(*(engine.run(request_for(*one)) for one in asked))
        alone = [await engine.run(request_for(*one)) for one in asked]
    assert [ranking.ranked for ranking in together] == [ranking.ranked for ranking in alone]
    assert [ranking.trace.windows for ranking in together] == [ranking.trace.windows for ranking in alone]


async def test_windows_of_several_requests_share_a_batch():
    async with held_engine(LARGE_BATCHES) as (engine, ranker):
        start(*(engine.run(request_for(shuffled(5), Single(5))) for _ in range(23)))
        await wait_for_queue(engine, 23)
    assert ranker.batches == [1, 23]


async def test_ranker_prepares_and_encodes_on_one_thread_and_scores_on_another():
    threads: dict[str, set[int]] = defaultdict(set)
    ranker = NumberRanker(instead=lambda method, *_: threads[method].add(threading.get_ident()))
    async with engine_for(ranker) as engine:
        await asyncio.gather(*(engine.run(request_for(shuffled(50))) for _ in range(8)))
    prepare, encode, score = (threads[method] for method in ("prepare", "encode", "score"))
    assert (prepare, len(prepare), len(score)) == (encode, 1, 1)
    assert len({threading.get_ident()} | prepare | score) == 3


async def test_ranker_without_batching_gets_one_window_at_a_time():
    ranker = NumberRanker(supports_batching=False)
    async with engine_for(ranker, EngineConfig()) as engine:
        await engine.run(request_for(shuffled(30), Blocks(5)))
    assert ranker.batches == [1] * 6


@pytest.mark.parametrize(
    ("gpu_batch_tokens", "configured", "batches"), [(0, None, [2, 2, 1]), (9000, None, [5]), (9000, 400, [2, 2, 1])]
)
async def test_batch_holds_512_tokens_on_a_cpu_and_more_on_an_accelerator_unless_it_is_configured(
    gpu_batch_tokens, configured, batches
):
    ranker = NumberRanker(gpu_batch_tokens=gpu_batch_tokens)
    async with engine_for(ranker, EngineConfig(max_batch_tokens=configured)) as engine:
        await engine.run(request_for(shuffled(100), Blocks(20)))  # 200 tokens each
    assert ranker.batches == batches
