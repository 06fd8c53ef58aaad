"""Query likelihood with and without the states of passages: a known list, a new one, and requests by Zipf's law."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from rerank.checkpoints import bundled
from rerank.config import EngineConfig, Precision
from rerank.engine.engine import Engine
from rerank.engine.request import RankRequest
from rerank.engine.strategies import Single, Step
from rerank.models.state_cache import StateCache
from rerank.rankers.query_likelihood import QueryLikelihoodRanker
from rerank.types import Candidate, Passage, Query
from scripts.bench.models import make_windows
from scripts.bench.timing import Values, ratios, time_in_turns_async
from scripts.bench.workload import PASSAGES, Workload

_ENOUGH_BYTES = 8 * 1024**3
#: Under Zipf's law each of so many requests has five of a hundred passages; that of rank r is drawn by 1 / r.
_REQUESTS, _LISTED, _ALL = 30, 5, 100
#: Bound of the states under Zipf's law, as a share of those of all passages.
_SHARE = 0.25


def measure_passage_states(workload: Workload) -> Values:
    """SmolLM2 on texts of random words, through the engine; every request has a query of its own."""
    precisions: tuple[Precision, ...] = ("float32", "bfloat16")
    values: Values = {}
    for precision in precisions:
        values |= asyncio.run(_measure(workload, precision))
    return values


async def _measure(workload: Workload, precision: Precision) -> Values:
    (window,) = make_windows(workload.encoder, 1, _ALL, 4 if workload.quick else None)
    lists = _zipf_lists(window.passages, 3 if workload.quick else _REQUESTS)
    one = [window.passages[:PASSAGES]]
    path = workload.checkpoint if workload.quick else Path(bundled.SMOLLM2)
    plain, keeping = (
        QueryLikelihoodRanker(path, device="cpu", precision=precision, passage_tokens=256, state_bytes=bound)
        for bound in (0, _ENOUGH_BYTES)
    )
    async with Engine({"plain": plain, "keeping": keeping}, EngineConfig()) as engine:
        without, known = _runs(engine, "plain", one), _runs(engine, "keeping", one)
        new = _runs(engine, "keeping", one, keeping.states.clear)
        of_list = await time_in_turns_async({"plain": without, "new": new, "known": known}, workload.few_repeats)
        all_bytes = keeping.states.used_bytes * _ALL / PASSAGES
        keeping.states = StateCache(int(all_bytes * _SHARE))
        runs = {"plain": _runs(engine, "plain", lists), "zipf": _runs(engine, "keeping", lists)}
        of_zipf = await time_in_turns_async(runs, 1, warms_up=False)
    states = keeping.states
    return {
        f"states_vs_none, known list, {precision}": ratios(of_list["plain"], of_list["known"]),
        f"states_vs_none, new list, {precision}": ratios(of_list["plain"], of_list["new"]),
        f"states_vs_none, Zipf, {precision}": ratios(of_zipf["plain"], of_zipf["zipf"]),
        f"hits of states, Zipf, {precision}": [states.hits / (states.hits + states.misses)],
    }


def _runs(
    engine: Engine, model: str, lists: Sequence[Sequence[Passage]], before: Callable[[], None] = lambda: None
) -> Callable[[], Awaitable[None]]:
    """Ranks the lists one after the other, each for a query that was not asked before."""
    numbers = itertools.count()

    async def run() -> None:
        before()
        for passages in lists:
            query = Query(f"how does number {next(numbers)} differ from others")
            await engine.run(RankRequest(query, tuple(map(Candidate, passages)), (Step(model, Single(1000)),)))

    return run


def _zipf_lists(passages: Sequence[Passage], requests: int) -> list[list[Passage]]:
    rng = random.Random(0)
    weights = [1 / rank for rank in range(1, len(passages) + 1)]
    lists = []
    for _ in range(requests):
        drawn: dict[str, Passage] = {}
        while len(drawn) < _LISTED:
            (passage,) = rng.choices(passages, weights)
            drawn[passage.doc_id] = passage
        lists.append(list(drawn.values()))
    return lists
