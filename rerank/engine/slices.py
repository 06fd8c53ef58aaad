"""Slices of long passages: parts of a request that are prepared one by one, so that others take their turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

from rerank.types import Passage


def slices(passages: Sequence[Passage], tokens: Callable[[Passage], int], max_tokens: float) -> list[list[int]]:
    """Positions of the passages in slices of at most so many tokens, or of one text; equal texts share a slice.

    They are in the order of their lengths, so that a batch of a slice needs little padding.
    """
    texts = [passage.text for passage in passages]
    by_length = sorted(range(len(texts)), key=lambda position: (len(texts[position]), texts[position]))
    parts, room = list[list[int]](), 0.0
    for _, same in groupby(by_length, key=texts.__getitem__):  # compares neighbours, which is faster than hashing all
        positions = list(same)
        needed = sum(tokens(passages[position]) for position in positions)
        if needed > room or not parts:
            parts.append([])
            room = max_tokens
        parts[-1] += positions
        room -= needed
    return parts
