"""Slices of a request's work: others take their turns, and the request can be cancelled, between two of them.

Passages are prepared in slices. A ranker that scores each passage alone reads its windows in slices of about a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from rerank.engine.job import Completed
from rerank.engine.progress import RankedWindow
from rerank.types import EncodedWindow, Passage, Window, WindowRanking


def slices(passages: Sequence[Passage], tokens: Callable[[Passage], int], max_tokens: float) -> list[list[int]]:
    """Divides positions of passages into slices of at most so many tokens, or of one text. Equal texts share one.

    They are in the order of their lengths, so that a batch of a slice needs little padding.
    """
    texts = [passage.text for passage in passages]
    by_length = sorted(range(len(texts)), key=lambda position: (len(texts[position]), texts[position]))
    found, free_tokens = list[list[int]](), 0.0
    for _, same in groupby(by_length, key=texts.__getitem__):  # compares neighbours, which is faster than hashing all
        positions = list(same)
        needed = sum(tokens(passages[position]) for position in positions)
        if needed > free_tokens or not found:
            found.append([])
            free_tokens = max_tokens
        found[-1] += positions
        free_tokens -= needed
    return found


@dataclass(frozen=True, slots=True)
class WindowSlice:
    """Some passages of a window, as a window of their own.

    Attributes:
        window: these passages.
        places: their places in the whole window.
        share: their share of the whole window's passages, 0 to 1.
    """

    window: Window
    places: Sequence[int]
    share: float = 1.0


def sliced(window: Window, tokens: Callable[[Passage], int], max_tokens: float) -> list[WindowSlice]:
    """Divides a window into slices, see `slices`. One that fits a slice keeps its order."""
    passages = window.passages
    divisions = slices(passages, tokens, max_tokens)
    if len(divisions) < 2:
        return [WindowSlice(window, range(len(passages)))]
    return [
        WindowSlice(
            replace(window, passages=tuple(passages[place] for place in places)), places, len(places) / len(passages)
        )
        for places in divisions
    ]


def joined(window: Window, window_slices: Sequence[WindowSlice], ranked: Sequence[RankedWindow]) -> RankedWindow:
    """Makes the ranking of a window from those of its slices; it took the time from the first slice to the last."""
    if len(window_slices) == 1:
        return ranked[0]
    scores = [0.0] * len(window.passages)
    truncated, unscored = list[int](), list[int]()
    for each, (encoded, done) in zip(window_slices, ranked, strict=True):
        for place, score in zip(each.places, done.result.scores, strict=True):
            scores[place] = score
        truncated += (each.places[place] for place in encoded.truncated)
        unscored += (each.places[place] for place in done.result.unscored)
    batch_ms = sum({done.batch_ms for _, done in ranked})  # slices in the same batch have its one duration
    queue_ms = max(0.0, max(done.queue_ms + done.batch_ms for _, done in ranked) - batch_ms)
    whole_window = EncodedWindow(
        window, tokens=sum(encoded.tokens for encoded, _ in ranked), truncated=tuple(sorted(truncated))
    )
    ranking = WindowRanking(tuple(scores), unscored=tuple(sorted(unscored)))
    return whole_window, Completed(ranking, queue_ms, batch_ms)
