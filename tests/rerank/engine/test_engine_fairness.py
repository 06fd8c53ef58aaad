"""Engine: one request does not stop the others, whatever its passages, its windows or its model."""

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rerank.config import EngineConfig
from rerank.engine.engine import Engine
from rerank.engine.request import Request
from rerank.engine.strategies import RankStage, Sliding, TopDown
from rerank.errors import InvalidRequest
from rerank.rankers.identity import IdentityRanker
from rerank.types import Passage, PreparedTexts, Query
from tests.fakes import NumberRanker
from tests.rerank.engine.harness import (
    Blocks,
    engine_for,
    positions,
    request_for,
    shuffled,
    start,
    wait_for,
    wait_until_blocked,
)


def sliced_ranker(holds: bool = False, **info: Any) -> NumberRanker:
    """Truncates the first passage of each slice that it prepares. Blocks in each until `release` is set, if `holds`."""

    def prepare(method: str, *arguments: Any) -> PreparedTexts | None:
        if method != "prepare":
            return None
        query, passages = arguments
        if holds:
            ranker.block()
        return PreparedTexts(Query(f"prepared {query.text}"), tuple(passages), truncated_doc_ids=(passages[0].doc_id,))

    ranker = NumberRanker(instead=prepare, **info)
    return ranker


def slices(ranker: NumberRanker) -> list[list[str]]:
    """The doc_ids of the passages of each slice that was prepared."""
    return [doc_ids for _, doc_ids in ranker.prepared]


def prepared_queries(ranker: NumberRanker) -> list[str]:
    return [query for query, _ in ranker.prepared]


def long_request(n: int) -> Request:
    """A request whose slices hold one passage each, of 1,000 estimated tokens; relevance falls."""
    candidates = tuple(Passage(f"d{i}", f"relevance {n - i} ".ljust(4000 + i, "x")) for i in range(n))
    return Request(Query("long"), candidates, (RankStage("number", Blocks(100)),))


async def test_long_passages_are_prepared_in_slices():
    ranker = sliced_ranker()
    async with engine_for(ranker) as engine:
        ranking = await engine.run(long_request(5))
    assert slices(ranker) == [[f"d{number}"] for number in range(5)]
    assert prepared_queries(ranker)[:3] == ["long", "prepared long", "prepared prepared long"]
    assert positions(ranking) == list(range(5))
    assert ranking.trace.truncated_doc_ids == tuple(f"d{number}" for number in range(5))


async def test_passages_to_encode_are_prepared_in_slices_also_after_many_with_vectors():
    """After requests whose vectors were known, a slice had 9,000 tokens, and others waited 1.6 s for it."""
    ranker = sliced_ranker(needs_vectors=True)
    passages = long_request(100).candidates
    known = [replace(passage, vector=np.ones(2, dtype=np.float32)) for passage in passages]
    async with engine_for(ranker) as engine:
        for _ in range(3):
            await engine.run(replace(long_request(100), candidates=tuple(known)))
        ranker.prepared.clear()
        await engine.run(long_request(100))
    assert max(map(len, slices(ranker))) * (len(passages[0].text) // 4) <= 2048
    assert sum(map(len, slices(ranker))) == 100


async def test_cancelled_request_prepares_no_further_slice():
    """A cancelled request kept the thread busy for 115 s."""
    ranker = sliced_ranker(holds=True)
    async with engine_for(ranker) as engine:
        (task,) = start(engine.run(long_request(5)))
        assert await asyncio.to_thread(ranker.entered.wait, 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        ranker.release.set()
        await engine.run(request_for([1, 2]))
    assert [len(part) for part in slices(ranker)] == [1, 2], "the running slice ends, and the next request follows"


async def test_short_request_is_prepared_between_the_slices_of_a_long_one():
    ranker = sliced_ranker(holds=True)
    async with engine_for(ranker) as engine:
        (long,) = start(engine.run(long_request(5)))
        assert await asyncio.to_thread(ranker.entered.wait, 60)
        (short,) = start(engine.run(request_for([1, 2], query="short")))
        await wait_for(lambda: len(engine._models["number"]._preparing) == 1)
        ranker.release.set()
        await asyncio.gather(long, short)
    assert prepared_queries(ranker).index("short") in (1, 2)


async def test_model_does_not_wait_for_another_one():
    """Identity waited 39 s for 500 calls of FIRST."""
    held = NumberRanker(free_batches=0)
    async with Engine({"number": held, "identity": IdentityRanker()}, EngineConfig()) as engine:
        calls = start(*(engine.run(request_for([1, 2])) for _ in range(50)))
        await wait_until_blocked(held)
        ranking = await asyncio.wait_for(engine.run(request_for([1, 2], model="identity")), 10)
        assert positions(ranking) == [0, 1]
        held.release.set()
        await asyncio.gather(*calls)


@pytest.mark.parametrize("strategy", [Sliding(2, 1), Blocks(2)], ids=str)
async def test_too_many_windows_are_refused_before_anything_is_prepared(monkeypatch, strategy):
    ranker = sliced_ranker()
    monkeypatch.setattr("rerank.engine.engine.MAX_WINDOWS", 30)
    async with engine_for(ranker) as engine:
        await engine.run(request_for(shuffled(20), strategy))
        message = r"needs \d+ windows for 100 candidates, more than the limit of 30; use"
        with pytest.raises(InvalidRequest, match=message):
            await engine.run(request_for(shuffled(100), strategy))
    assert len(slices(ranker)) == 1


async def test_windows_that_depend_on_the_rankings_are_refused_when_they_come(monkeypatch):
    """Top-down partitioning needs 6 windows for these candidates at least, and dozens if all beat the pivot."""
    monkeypatch.setattr("rerank.engine.engine.MAX_WINDOWS", 12)
    async with engine_for(NumberRanker()) as engine:
        await engine.run(request_for(range(60, 0, -1), TopDown(10)))
        with pytest.raises(InvalidRequest, match="top-down"):
            await engine.run(request_for(range(60), TopDown(10)))
