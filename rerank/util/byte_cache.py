"""Caches that are bounded in bytes, because texts of callers are of any length."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from hashlib import sha256
from threading import Lock
from typing import Any, Generic, TypeVar

from cachetools import LRUCache

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
R = TypeVar("R")

#: Estimate of the memory of a token id in a tuple, in bytes: the pointer and the number.
BYTES_PER_TOKEN = 36
_MAX_BYTES = 32 * 1024 * 1024


class ByteCache(Generic[K, V]):
    """A cache with a bound in bytes; the least recently used entries go first. Safe between threads.

    Args:
        max_bytes: bound on the memory of all entries; 0: nothing is kept.

    Attributes:
        hits, misses: the number of keys that were looked up so far and found, or not.
    """

    def __init__(self, max_bytes: int = 0) -> None:
        self.max_bytes = max_bytes
        self.hits = self.misses = 0
        self._lock = Lock()
        self._entries: Any = LRUCache(max_bytes, getsizeof=lambda entry: entry[1])

    def __contains__(self, key: K) -> bool:
        """Returns True if the key has an entry; this counts neither as a use nor as a hit."""
        with self._lock:
            return key in self._entries

    def get(self, key: K) -> V | None:
        """Returns the entry of a key, or None if there is none."""
        with self._lock:
            found = self._entries.get(key)
            self.hits, self.misses = self.hits + (found is not None), self.misses + (found is None)
        return None if found is None else found[0]

    def keep(self, key: K, value: V, size: int) -> None:
        """Keeps an entry of `size` bytes, unless it alone exceeds the bound."""
        if size > self.max_bytes:
            return
        with self._lock:
            self._entries[key] = value, size

    def clear(self) -> None:
        """Forgets all entries and the counts."""
        with self._lock:
            self._entries.clear()
            self.hits = self.misses = 0


def cached_by_bytes(
    function: Callable[..., R], size_of: Callable[..., int], max_bytes: int = _MAX_BYTES
) -> Callable[..., R]:
    """Returns the function with a cache of its results. The least recently used go first.

    Args:
        size_of: estimate of the bytes of a result, given the result and its arguments.
        max_bytes: bound on the sum of these estimates; a larger result is not cached.
    """
    results = ByteCache[tuple[Hashable, ...], tuple[R]](max_bytes)

    def lookup(*given: Hashable) -> R:
        if (found := results.get(given)) is None:
            found = (function(*given),)
            results.keep(given, found, size_of(found[0], *given))
        return found[0]

    return lookup


def text_key(text: str) -> bytes:
    """Returns the key of a text: its SHA-256, so that the key of a long text is as small as that of a short one."""
    return sha256(text.encode("utf-8", "surrogatepass")).digest()
