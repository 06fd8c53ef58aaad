"""Measures, when the engine starts, the batch size in tokens that saturates a device."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from rerank.rankers.base import Ranker
from rerank.types import EncodedWindow, Passage, Query, Window

_PASSAGES = 20
_PASSAGE = "A passage of the length that passages of a collection have on average, which is some sixty words. " * 3
#: The device is saturated if a batch of twice the size raises tokens per second by less than this factor.
_MIN_SPEEDUP = 1.05
_REPEATS = 3
#: Larger batches are not tried.
_MAX_TOKENS = 131_072


def saturating_tokens(ranker: Ranker, clock: Callable[[], float] = time.perf_counter) -> int:
    """Finds the smallest batch, in tokens, whose double has tokens per second that are less than 5 % higher.

    Doubles the number of equal windows of 20 passages (fewer if the ranker reads fewer), up to 131,072 tokens.
    """
    passages = [Passage(str(place), _PASSAGE) for place in range(min(_PASSAGES, ranker.info.max_window_size))]
    prepared = ranker.prepare(Query("what do passages have on average"), passages)
    window = ranker.encode(Window(prepared.query, prepared.passages))
    tokens, windows = max(1, window.tokens), 1
    seconds = _fastest_s(ranker, [window], clock)
    while 2 * windows * tokens <= _MAX_TOKENS:
        try:
            doubled_s = _fastest_s(ranker, [window] * (2 * windows), clock)
        except MemoryError:
            break
        if 2 * seconds < _MIN_SPEEDUP * doubled_s:
            break
        windows, seconds = 2 * windows, doubled_s
    return windows * tokens


def _fastest_s(ranker: Ranker, windows: Sequence[EncodedWindow], clock: Callable[[], float]) -> float:
    """Times a few runs after one that warms up, and returns the seconds of the fastest one."""
    ranker.rank(windows)
    times = []
    for _ in range(_REPEATS):
        start_s = clock()
        ranker.rank(windows)
        times.append(clock() - start_s)
    return min(times)
