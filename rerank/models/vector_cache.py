"""Vectors of texts that come again: a cache between requests, bounded in bytes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from hashlib import sha256
from threading import Lock
from typing import Any

from cachetools import LRUCache

from rerank.types import Passage, Vector

#: Estimate of the memory of an entry besides the numbers of its vector, in bytes.
_ENTRY_BYTES = 700


class VectorCache:
    """The vectors of the texts that one encoder encoded last; the least recently used go first. Safe between threads.

    A text is known by its SHA-256, so that an entry is as small for a long text as for a short one. Its title is part
    of the text. A vector is returned bit by bit as it was stored.

    Args:
        max_bytes: bound on the memory of all entries; 0: nothing is kept.

    Attributes:
        hits, misses: the number of texts that were looked up so far and found, or not.
    """

    def __init__(self, max_bytes: int = 0) -> None:
        self.max_bytes = max_bytes
        self.hits = self.misses = 0
        self._lock = Lock()
        self._entries: Any = LRUCache(max_bytes, getsizeof=lambda entry: _ENTRY_BYTES + entry[0].nbytes)

    def put(self, text: str, vector: Vector, is_truncated: bool) -> None:
        """Keeps the vector of a text, of which it covers only the beginning if `is_truncated`."""
        if vector.nbytes + _ENTRY_BYTES > self.max_bytes:
            return
        entry = vector.copy(), is_truncated  # a row of a matrix would keep the whole matrix in memory
        entry[0].flags.writeable = False
        key = _key(text)
        with self._lock:
            self._entries[key] = entry

    def fill(self, passages: Iterable[Passage]) -> list[Passage]:
        """The passages, each without a vector with that of its text if it is known."""
        return [self._filled(passage) if passage.vector is None else passage for passage in passages]

    def _filled(self, passage: Passage) -> Passage:
        key = _key(passage.text)
        with self._lock:
            entry = self._entries.get(key)
            self.hits, self.misses = self.hits + (entry is not None), self.misses + (entry is None)
        if entry is None:
            return passage
        vector, is_truncated = entry
        return replace(passage, vector=vector, vector_truncated=is_truncated, vector_cached=True)


def _key(text: str) -> bytes:
    return sha256(text.encode("utf-8", "surrogatepass")).digest()
