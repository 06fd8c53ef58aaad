"""The cache of states: bounded in bytes, the least recently used go first, and shared between threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch

from rerank.models.state_cache import State, StateCache

LAYERS, HEADS, WIDTH = 3, 2, 4


def state(positions: int, value: float = 1.0) -> State:
    def tensor() -> torch.Tensor:
        return torch.full((1, HEADS, positions, WIDTH), value)

    return tuple((tensor(), tensor()) for _ in range(LAYERS))


def number_bytes(positions: int) -> int:
    """The memory of the numbers of a state alone."""
    return LAYERS * 2 * HEADS * positions * WIDTH * 4


def size_of(positions: int) -> int:
    """The memory that a state counts for."""
    cache = StateCache(10**9)
    cache.put(tuple(range(positions)), state(positions))
    return cache.used_bytes


def test_state_comes_back_and_lookups_are_counted() -> None:
    cache = StateCache(10**6)
    kept = state(5)
    cache.put((1, 2, 3), kept)
    assert cache.get((1, 2, 3)) is kept
    assert cache.get((1, 2)) is None
    assert cache.get((1, 2, 3, 4)) is None
    assert (cache.hits, cache.misses) == (1, 2)


def test_state_counts_all_its_numbers_and_little_more() -> None:
    assert number_bytes(1000) < size_of(1000) < number_bytes(1000) + 50_000


def test_memory_stays_within_the_bound() -> None:
    bound = 10 * size_of(100)
    cache = StateCache(bound)
    for first in range(50):
        cache.put(tuple(range(first, first + 100)), state(100))
        assert cache.used_bytes <= bound
    assert sum(tuple(range(first, first + 100)) in cache for first in range(50)) == 10


def test_least_recently_used_state_goes_first() -> None:
    cache = StateCache(3 * size_of(4))
    keys = [(n, n, n, n) for n in range(4)]
    for key in keys[:3]:
        cache.put(key, state(4))
    cache.get(keys[0])
    cache.put(keys[3], state(4))
    assert [key in cache for key in keys] == [True, False, True, True]


def test_asking_whether_a_state_is_kept_is_no_use_of_it() -> None:
    cache = StateCache(2 * size_of(1))
    cache.put((1,), state(1))
    cache.put((2,), state(1))
    assert (1,) in cache
    cache.put((3,), state(1))
    assert ((1,) in cache, (2,) in cache, cache.hits, cache.misses) == (False, True, 0, 0)


def test_state_larger_than_the_bound_is_not_kept_and_displaces_nothing() -> None:
    cache = StateCache(size_of(10))
    cache.put((1,), state(1))
    cache.put(tuple(range(11)), state(11))
    assert (1,) in cache
    assert tuple(range(11)) not in cache


def test_bound_of_no_bytes_keeps_nothing() -> None:
    cache = StateCache(0)
    cache.put((1,), state(1))
    assert cache.get((1,)) is None
    assert cache.used_bytes == 0


def test_state_that_is_put_again_counts_once() -> None:
    cache = StateCache(10**6)
    for _ in range(3):
        cache.put((1, 2), state(2))
    assert cache.used_bytes == size_of(2)


def test_threads_share_a_cache() -> None:
    cache = StateCache(20 * size_of(1))

    def use(worker: int) -> None:
        for n in range(500):
            key = ((worker + n) % 40,)
            found = cache.get(key)
            assert found is None or found[0][0][0, 0, 0, 0] == key[0]
            cache.put(key, state(1, float(key[0])))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(use, range(4)))
    assert cache.hits + cache.misses == 4 * 500
    assert cache.used_bytes <= cache.max_bytes
