"""Attacks on the engine: long passages, many windows, and many calls to one model."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence

from rerank.v1 import rerank_pb2 as pb
from scripts.attacks.target import Target
from scripts.random_requests import random_request

_TIMEOUT_S, _SHORT_TIMEOUT_S = 60.0, 2.0
_PAIRS = pb.Strategy(kind="STRATEGY_KIND_SLIDING", window_size=2, stride=1)


async def nothing(target: Target) -> Counter[str]:
    """No attack, for comparison: what the probes and other programs of the machine cost."""
    return Counter()


async def cancelled_encoding(target: Target) -> Counter[str]:
    """PE-Rank with 1,000 passages of 16,000 characters, cancelled after two seconds."""
    message = random_request(random.Random(0), "pe-rank", 1000, 16_000, allow_partial=True)  # otherwise it is refused
    return Counter([await target.cancelled_rerank(message, 2.0)])


async def long_passages_to_first(target: Target) -> Counter[str]:
    """80 passages of 200,000 characters."""
    message = random_request(random.Random(0), "first", 80, 200_000, allow_partial=True)
    return Counter([await target.rerank(message, _TIMEOUT_S)])


async def narrow_windows(target: Target) -> Counter[str]:
    """Ten sliding passes of window 2 over 1,000 tiny passages with identity: 110 kB, some 10,000 windows."""
    draw = random.Random(0)
    return await _together(target, [random_request(draw, "identity", 1000, 4, strategy=_PAIRS) for _ in range(10)])


async def narrow_windows_of_many(target: Target) -> Counter[str]:
    """128 calls at once with one pass of window 2 over 1,000 tiny passages."""
    message = random_request(random.Random(0), "identity", 1000, 4, strategy=_PAIRS)
    return await _together(target, [message] * 128)


async def flood_of_first(target: Target) -> Counter[str]:
    """500 FIRST calls at once, of ten passages each."""
    draw = random.Random(0)
    return await _together(target, [random_request(draw, "first", 10, 300) for _ in range(500)])


async def long_then_short(target: Target) -> Counter[str]:
    """20 documents of 198,000 characters, in words and then in dots, to the default; after each 20 short requests."""
    draw, ends = random.Random(0), Counter[str]()
    long = random_request(draw, "default", 20, 198_000)
    dots = random_request(draw, "default", 20, 1)
    for number, candidate in enumerate(dots.candidates):
        candidate.text = f"{number} " + "." * 198_000
    for strange in (long, dots):
        ends["long: " + await target.rerank(strange, _TIMEOUT_S)] += 1
        for _ in range(20):
            ends["short: " + await target.rerank(random_request(draw, "default", 5, 200), _SHORT_TIMEOUT_S)] += 1
    return ends


async def _together(target: Target, messages: Sequence[pb.RerankRequest]) -> Counter[str]:
    return Counter(await asyncio.gather(*(target.rerank(message, _TIMEOUT_S) for message in messages)))
