"""Bounds caches in bytes, because texts from outside are of any length."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any, TypeVar

from cachetools import LRUCache, cached

R = TypeVar("R")

#: Estimate of the memory of a token id in a tuple, in bytes: the pointer and the number.
BYTES_PER_TOKEN = 36
_MAX_BYTES = 32 * 1024 * 1024


def cached_by_bytes(
    function: Callable[..., R], size_of: Callable[..., int], max_bytes: int = _MAX_BYTES
) -> Callable[..., R]:
    """Returns the function with a cache of its results. The least recently used go first.

    Args:
        size_of: estimate of the bytes of a result, given the result and its arguments.
        max_bytes: bound on the sum of these estimates; a larger result is not cached.
    """
    results: Any = LRUCache(max_bytes, getsizeof=lambda sized: sized[1])
    lookup = cached(results, lock=Lock())(lambda *given: ((result := function(*given)), size_of(result, *given)))
    return lambda *given: lookup(*given)[0]
