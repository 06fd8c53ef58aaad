"""Attacks on the engine: long passages, many windows, many calls to one model, overload and a stale estimate."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterable

from rerank.v1 import rerank_pb2 as pb
from scripts.load_test.open_loop import Outcome, open_loop, poisson_arrivals
from scripts.load_test.requests import made_request
from scripts.trials.attacks.registry import attack
from scripts.trials.calls import Target

_TIMEOUT_S = 60.0
_OVERLOAD_S = 15.0
_TOURNAMENT_OF_2 = pb.Strategy(kind="STRATEGY_KIND_TOURNAMENT", window_size=2)


@attack
async def nothing(target: Target, draw: random.Random) -> Counter[str]:
    """No attack, for comparison: what the probes and other programs of the machine cost."""
    return Counter()


@attack
async def cancelled_encoding(target: Target, draw: random.Random) -> Counter[str]:
    """PE-Rank with 1,000 passages of 16,000 characters, cancelled after two seconds."""
    message = made_request(draw, "pe-rank", 1000, 16_000, allow_partial=True)  # so admission control lets it in
    return Counter([await target.cancelled_rerank(message, 2.0)])


@attack
async def long_passages_to_pe_rank(target: Target, draw: random.Random) -> Counter[str]:
    """80 passages of 200,000 characters."""
    return Counter([await target.rerank(made_request(draw, "pe-rank", 80, 200_000, allow_partial=True), _TIMEOUT_S)])


@attack
async def long_passages_to_first(target: Target, draw: random.Random) -> Counter[str]:
    """80 passages of 200,000 characters."""
    return Counter([await target.rerank(made_request(draw, "default", 80, 200_000, allow_partial=True), _TIMEOUT_S)])


@attack
async def many_windows_to_first(target: Target, draw: random.Random) -> Counter[str]:
    """100 passages of 2,000 characters in sliding windows."""
    sliding = pb.Strategy(kind="STRATEGY_KIND_SLIDING")
    message = made_request(draw, "default", 100, 2000, allow_partial=True, strategy=sliding)
    return Counter([await target.rerank(message, _TIMEOUT_S)])


@attack
async def narrow_tournaments(target: Target, draw: random.Random) -> Counter[str]:
    """Ten tournaments of window 2 over 1,000 tiny passages with identity: 110 kB, some 10,000 windows."""
    messages = [made_request(draw, "identity", 1000, 4, strategy=_TOURNAMENT_OF_2) for _ in range(10)]
    return await _together(target, messages)


@attack
async def flood_of_first(target: Target, draw: random.Random) -> Counter[str]:
    """500 FIRST calls at once, of ten passages each."""
    return await _together(target, [made_request(draw, "default", 10, 300) for _ in range(500)])


@attack
async def heavy_then_short(target: Target, draw: random.Random) -> Counter[str]:
    """One request of 100 passages of 2,000 characters, then 70 short ones that have a second each."""
    outcomes: Counter[str] = Counter()
    for model in ("default", "pe-rank"):
        await target.rerank(made_request(draw, model, 100, 2000), _TIMEOUT_S)
        for _ in range(35):
            start_s = time.perf_counter()
            outcomes[await target.rerank(made_request(draw, model, 5, 100), 1.0)] += 1
            await asyncio.sleep(max(0.0, 0.2 - (time.perf_counter() - start_s)))
    return outcomes


@attack
async def overload(target: Target, draw: random.Random) -> Counter[str]:
    """FIRST calls for 15 s at four times the rate at which they are served, with deadlines of eight times a call."""
    start_s = time.perf_counter()
    for _ in range(3):
        await target.rerank(made_request(draw, "default", 20, 300), _TIMEOUT_S)
    call_s = (time.perf_counter() - start_s) / 3
    timeout_s = 8 * call_s

    async def call(_: int) -> Outcome:
        return Outcome(await _in_time(target, made_request(draw, "default", 20, 300), timeout_s))

    return (await open_loop(call, poisson_arrivals(4 / call_s, _OVERLOAD_S, draw), _OVERLOAD_S)).statuses


async def _in_time(target: Target, message: pb.RerankRequest, timeout_s: float) -> str:
    """The outcome of a call: answered, refused (before its deadline), or late."""
    start_s = time.perf_counter()
    status = await target.rerank(message, timeout_s)
    is_late = time.perf_counter() - start_s > 0.98 * timeout_s
    return "answered" if status == "OK" else "late" if is_late else "refused"


async def _together(target: Target, messages: Iterable[pb.RerankRequest]) -> Counter[str]:
    return Counter(await asyncio.gather(*(target.rerank(message, _TIMEOUT_S) for message in messages)))
