"""Parts of windows: a ranker that scores each passage alone reads a window in parts of about a batch.

So a request of a thousand passages is cancelled, late or overtaken between two batches, and not after its one window.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rerank.engine.request import Completed, RankedWindow
from rerank.engine.slices import slices
from rerank.types import EncodedWindow, Passage, Window, WindowRanking


@dataclass(frozen=True, slots=True)
class WindowPart:
    """Some passages of a window, as a window of their own.

    Attributes:
        window: these passages.
        places: their places in the whole window.
        share: of the whole window, by passages.
    """

    window: Window
    places: Sequence[int]
    share: float = 1.0


def divided(window: Window, tokens: Callable[[Passage], int], max_tokens: float) -> list[WindowPart]:
    """Parts of at most so many estimated tokens, or of one text; each has passages of like lengths."""
    passages = window.passages
    divisions = slices(passages, tokens, max_tokens)
    if len(divisions) < 2:
        return [WindowPart(window, range(len(passages)))]  # in its own order
    return [
        WindowPart(
            replace(window, passages=tuple(passages[place] for place in places)), places, len(places) / len(passages)
        )
        for places in divisions
    ]


def joined(window: Window, parts: Sequence[WindowPart], ranked: Sequence[RankedWindow]) -> RankedWindow:
    """The ranking of a window from those of its parts, with the time from the first part to the last."""
    if len(parts) == 1:
        return ranked[0]
    scores = [0.0] * len(window.passages)
    truncated, unscored = list[int](), list[int]()
    for part, (encoded, done) in zip(parts, ranked, strict=True):
        for place, score in zip(part.places, done.result.scores, strict=True):
            scores[place] = score
        truncated += (part.places[place] for place in encoded.truncated)
        unscored += (part.places[place] for place in done.result.unscored)
    batch_ms = sum({done.batch_ms for _, done in ranked})  # parts in the same batch have its one duration
    queue_ms = max(0.0, max(done.queue_ms + done.batch_ms for _, done in ranked) - batch_ms)
    whole_window = EncodedWindow(
        window, tokens=sum(encoded.tokens for encoded, _ in ranked), truncated=tuple(sorted(truncated))
    )
    ranking = WindowRanking(tuple(scores), unscored=tuple(sorted(unscored)))
    return whole_window, Completed(ranking, queue_ms, batch_ms)
