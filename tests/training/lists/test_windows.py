"""Windows sampled from lists: size, order, reproducibility, and always a best passage."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rerank_training.lists.training_list import TrainingList
from rerank_training.lists.windows import TrainingWindows, WindowSampling, sample_window
from rerank_training.trainer.data import held_out_windows
from rerank_training.trainer.flags import ListArguments

from rerank.types import Passage, Query


def numbered_list(n: int, name: str = "q", best: tuple[int, ...] = (0,)) -> TrainingList:
    passages = tuple(Passage(f"{position:03}", f"text {position}") for position in range(n))
    return TrainingList(Query(name), passages, tuple(5.0 if position in best else 1.0 for position in range(n)))


def positions_of(window: TrainingList) -> list[int]:
    return [int(passage.doc_id) for passage in window.passages]


def sampler(largest: int, smallest: int, share: float) -> Callable[[TrainingList, str], TrainingList]:
    return partial(sample_window, sampling=WindowSampling(largest, smallest, share))


def windows_of(
    lists: list[TrainingList], epochs: int = 2, seed: int = 3, share: float = 0.5
) -> TrainingWindows[TrainingList, TrainingList]:
    return TrainingWindows(lists, sampler(6, 2, share), epochs * len(lists), seed)


def test_window_depends_on_seed_and_index_alone() -> None:
    lists = [numbered_list(9, str(number)) for number in range(7)]
    forward, backward = windows_of(lists), windows_of(lists)
    in_order = [forward[index] for index in range(14)]
    assert [backward[index] for index in reversed(range(14))] == in_order[::-1]
    assert [windows_of(lists, epochs=50)[index] for index in range(14)] == in_order
    assert [windows_of(lists, seed=4)[index] for index in range(14)] != in_order


def test_each_epoch_shows_each_list_once_in_a_new_order() -> None:
    lists = [numbered_list(4, str(number)) for number in range(30)]
    windows = windows_of(lists, epochs=3)
    epochs = [[windows[30 * epoch + position].query.text for position in range(30)] for epoch in range(3)]
    assert len(windows) == 90
    assert all(sorted(epoch) == sorted(str(number) for number in range(30)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


@given(n=st.integers(2, 12), smallest=st.integers(2, 5), wider=st.integers(0, 5), seed=st.integers(), data=st.data())
def test_windows_hold_a_best_passage_and_fit_the_sizes(
    n: int, smallest: int, wider: int, seed: int, data: st.DataObject
) -> None:
    best = tuple(data.draw(st.sets(st.integers(0, n - 1), min_size=1)))
    item = numbered_list(n, best=best)
    window = sample_window(item, str(seed), WindowSampling(smallest + wider, smallest, 0.5))
    assert min(n, smallest) <= len(window.passages) <= min(n, smallest + wider)
    assert set(positions_of(window)) & set(best)
    assert len(set(positions_of(window))) == len(window.passages)
    assert window.relevance == tuple(item.relevance[position] for position in positions_of(window))


@pytest.mark.parametrize(("share", "in_order"), [(0.0, 200), (1.0, 0)])
def test_shuffled_share_of_windows_is_in_random_order(share: float, in_order: int) -> None:
    """A random order of 20 passages is practically never the list's."""
    windows = TrainingWindows([numbered_list(30)], sampler(20, 20, share), n_windows=200, seed=0)
    assert sum(
        positions_of(window) == sorted(positions_of(window)) for window in map(windows.__getitem__, range(200))
    ) == (in_order)


def test_held_out_windows_are_the_first_passages_of_the_lists() -> None:
    held_out = held_out_windows(ListArguments(lists="", window_size=4), [numbered_list(9), numbered_list(2)])
    assert list(map(positions_of, held_out or ())) == [[0, 1, 2, 3], [0, 1]]
