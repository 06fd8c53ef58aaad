"""Caches of the vectors of texts for later requests, bounded in bytes."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from threading import Lock
from typing import Any, Generic, TypeVar

from cachetools import LRUCache

from rerank.types import Passage, Vector
from rerank.util.sparse_vectors import SparseText

V = TypeVar("V")

#: Estimate of the memory of an entry without its numbers, in bytes.
_ENTRY_BYTES = 700


class TextCache(Generic[V]):
    """A least-recently-used cache: text → a value computed from it. Threads may share it.

    The key of a text is its SHA-256, so that keys of long texts are small, too.

    Args:
        max_bytes: limit on the memory of all entries; 0: nothing is kept.

    Attributes:
        hits: number of look-ups that found a value.
        misses: number of look-ups that found none.
    """

    def __init__(self, max_bytes: int = 0) -> None:
        self.max_bytes = max_bytes
        self.hits = self.misses = 0
        self._lock = Lock()
        self._entries: Any = LRUCache(max_bytes, getsizeof=lambda entry: entry[1])

    def get(self, text: str) -> V | None:
        """Returns the value of a text, or None."""
        with self._lock:
            found = self._entries.get(_key(text))
            self.hits, self.misses = self.hits + (found is not None), self.misses + (found is None)
        return None if found is None else found[0]

    def keep(self, text: str, value: V, nbytes: int) -> None:
        """Adds a value of `nbytes` bytes, unless it alone exceeds the limit."""
        size = _ENTRY_BYTES + nbytes
        if size > self.max_bytes:
            return
        with self._lock:
            self._entries[_key(text)] = value, size


class VectorCache(TextCache[tuple[Vector, int, bool]]):
    """The vectors of texts by one encoder, with the title as a part of the text. Vectors stay equal bit by bit."""

    def put(self, text: str, vector: Vector, tokens: int, is_truncated: bool) -> None:
        """Adds the vector of a text.

        Args:
            tokens: the number of tokens that were read.
            is_truncated: whether only the beginning of the text was read.
        """
        entry = vector.copy(), tokens, is_truncated  # a row of a matrix would keep the whole matrix in memory
        entry[0].flags.writeable = False
        self.keep(text, entry, vector.nbytes)

    def with_cached_vector(self, passage: Passage) -> Passage:
        """Returns the passage with its cached vector, if there is one."""
        if passage.vector is not None or (found := self.get(passage.text)) is None:
            return passage
        vector, tokens, is_truncated = found
        return replace(passage, vector=vector, vector_truncated=is_truncated, cached_tokens=tokens)


class SparseCache(TextCache[SparseText]):
    """The token states or sparse vectors of texts by one sparse encoder."""

    def put(self, text: str, sparse: SparseText) -> None:
        """Adds the states or the vector of a text. Its arrays must own their memory, and become read-only."""
        sparse.freeze()
        self.keep(text, sparse, sparse.nbytes)

    def with_cached_vector(self, passage: Passage) -> Passage:
        """Returns the passage with its cached `sparse`, if there is one."""
        if passage.sparse is not None or (found := self.get(passage.text)) is None:
            return passage
        return replace(passage, sparse=found)


def _key(text: str) -> bytes:
    return sha256(text.encode("utf-8", "surrogatepass")).digest()
