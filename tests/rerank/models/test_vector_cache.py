"""The cache of the vectors of texts: exact, bounded in bytes, and shared between threads."""

import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from rerank.models.vector_cache import VectorCache
from rerank.types import Passage, Vector


def vector(seed: int, dimension: int = 384) -> Vector:
    return np.random.default_rng(seed).normal(size=dimension).astype(np.float32)


def found(cache: VectorCache, text: str) -> Vector | None:
    passage = cache.with_cached_vector(Passage("d", text))
    return passage.vector


def test_vector_comes_back_bit_by_bit_with_its_truncation_and_tokens():
    cache = VectorCache(10_000)
    cache.put("a text", vector(1), tokens=7, is_truncated=True)
    passage = cache.with_cached_vector(Passage("d", "a text", title="a"))
    assert passage.vector.tobytes() == vector(1).tobytes()
    assert (passage.vector_truncated, passage.cached_tokens, passage.title) == (True, 7, "a")


def test_every_difference_of_a_text_counts():
    cache = VectorCache(10_000)
    cache.put("A title\nA text", vector(1), tokens=7, is_truncated=False)
    for text in ("A text", "A title A text", "a title\nA text", "A title\nA text ", ""):
        assert found(cache, text) is None


def test_passage_with_a_vector_keeps_it_and_is_not_counted():
    cache = VectorCache(10_000)
    cache.put("text", vector(1), tokens=7, is_truncated=False)
    passage = cache.with_cached_vector(Passage("d", "text", vector=vector(2)))
    assert passage.vector.tobytes() == vector(2).tobytes()
    assert (passage.cached_tokens, cache.hits, cache.misses) == (None, 0, 0)


def test_memory_is_bounded_even_for_rows_of_a_matrix_and_long_texts():
    limit = 1024 * 1024
    cache = VectorCache(limit)
    tracemalloc.start()
    try:
        for number in range(1500):
            rows = np.zeros((16, 384), dtype=np.float32)
            cache.put(f"{number}" + "x" * 5_000, rows[3], tokens=7, is_truncated=False)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0.3 * limit < taken < 1.05 * limit


def test_threads_share_it():
    cache = VectorCache(200 * (4 * 384 + 700))

    def work(seed: int) -> None:
        for number in range(300):
            key = (seed * 7 + number) % 250
            kept = found(cache, str(key))
            assert kept is None or kept.tobytes() == vector(key).tobytes()
            cache.put(str(key), vector(key), tokens=7, is_truncated=False)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert cache.hits + cache.misses == 8 * 300


def test_kept_vector_cannot_be_changed_by_its_users():
    cache, given = VectorCache(10_000), vector(1)
    cache.put("a", given, tokens=7, is_truncated=False)
    given[:] = 0
    kept = found(cache, "a")
    assert kept.tobytes() == vector(1).tobytes()
    with pytest.raises(ValueError, match="read-only"):
        kept[0] = 1
