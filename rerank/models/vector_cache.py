"""Keeps the vectors of texts for later requests, in caches that are bounded in bytes."""

from __future__ import annotations

from dataclasses import replace

from rerank.types import Passage, Vector
from rerank.util.byte_cache import ByteCache, text_key
from rerank.util.sparse_vectors import SparseText

#: Estimate of the memory of an entry besides its numbers, in bytes.
_ENTRY_BYTES = 700


class VectorCache(ByteCache[bytes, tuple[Vector, bool]]):
    """The vectors of the texts that one encoder encoded last.

    A text is known by its SHA-256. Its title is part of the text. A vector is returned bit by bit as it was stored.
    """

    def put(self, text: str, vector: Vector, is_truncated: bool) -> None:
        """Keeps the vector of a text. It covers only the beginning if `is_truncated`."""
        entry = vector.copy(), is_truncated  # a row of a matrix would keep the whole matrix in memory
        entry[0].flags.writeable = False
        self.keep(text_key(text), entry, _ENTRY_BYTES + vector.nbytes)

    def with_cached_vector(self, passage: Passage) -> Passage:
        """Gives a passage without a vector that of its text, if it is known."""
        if passage.vector is not None:
            return passage
        if (found := self.get(text_key(passage.text))) is None:
            return passage
        vector, is_truncated = found
        return replace(passage, vector=vector, vector_truncated=is_truncated, vector_cached=True)


class SparseCache(ByteCache[bytes, SparseText]):
    """Keeps one sparse encoder's results for the texts that it read last. The key is the text's SHA-256."""

    def put(self, text: str, sparse: SparseText) -> None:
        """Keeps the states or the vector of a text. Its arrays must own their memory, and can be changed no more."""
        sparse.freeze()
        self.keep(text_key(text), sparse, _ENTRY_BYTES + sparse.nbytes)

    def with_cached_vector(self, passage: Passage) -> Passage:
        """Gives a passage without `sparse` that of its text, if it is known."""
        if passage.sparse is not None:
            return passage
        found = self.get(text_key(passage.text))
        return passage if found is None else replace(passage, sparse=found)
