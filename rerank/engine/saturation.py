"""How many positions saturate a device: measured at start, because no data sheet says it."""

from __future__ import annotations

import time
from collections.abc import Callable

from rerank.rankers.base import Ranker
from rerank.types import Passage, Query, Window

_PASSAGES = 20
_PASSAGE = "A passage of the length that passages of a collection have on average, which is some sixty words. " * 3
#: A pack twice as large must be this much faster by the token, or the device was saturated.
_WORTH = 1.05
_REPEATS = 3
#: No pack is tried beyond.
_MOST_TOKENS = 131_072


def saturating_tokens(ranker: Ranker, clock: Callable[[], float] = time.perf_counter) -> int:
    """The smallest batch, in positions, from which doubling it raises tokens per second by less than 5 %.

    Doubles the number of equal windows of 20 passages (fewer, if the ranker reads fewer), to 131,072 positions at most.
    """
    passages = [Passage(str(place), _PASSAGE) for place in range(min(_PASSAGES, ranker.info.max_window_size))]
    prepared = ranker.prepare(Query("what do passages have on average"), passages)
    window = Window(prepared.query, prepared.passages)
    tokens, windows = max(1, ranker.tokens(window)), 1
    seconds = _seconds(ranker, [window], clock)
    while 2 * windows * tokens <= _MOST_TOKENS:
        try:
            doubled = _seconds(ranker, [window] * (2 * windows), clock)
        except MemoryError:
            break
        if 2 * seconds < _WORTH * doubled:
            break
        windows, seconds = 2 * windows, doubled
    return windows * tokens


def _seconds(ranker: Ranker, windows: list[Window], clock: Callable[[], float]) -> float:
    """The shortest of a few runs, after one that warms up."""
    ranker.rank(windows)
    times = []
    for _ in range(_REPEATS):
        begun = clock()
        ranker.rank(windows)
        times.append(clock() - begun)
    return min(times)
