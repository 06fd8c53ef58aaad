"""Slices of the passages that a request prepares: others take their turns, and it can be cancelled, between two."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

from rerank.types import Passage


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
