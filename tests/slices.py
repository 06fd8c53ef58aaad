"""Work in slices, done at once."""

from __future__ import annotations

from typing import TypeVar

from rerank.types import SlicedWork

T = TypeVar("T")


def finished(work: SlicedWork[T]) -> T:
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result
