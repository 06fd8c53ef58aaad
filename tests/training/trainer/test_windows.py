"""Windows of a run: sampled with size, order and always a best passage; no query is trained on and held out."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rerank_training.lists.training_list import TrainingList, write_lists
from rerank_training.trainer.flags import ListArguments
from rerank_training.trainer.windows import (
    TrainingWindows,
    WindowSampling,
    held_out_windows,
    read_training_lists,
    with_filled_windows,
)

from rerank.checkpoints import bundled
from rerank.checkpoints.manifest import read_manifest
from rerank.errors import ConfigError
from rerank.types import Passage, Query
from tests.word_lists import HELD_OUT_LETTERS, word_lists

LISTS, OTHERS = word_lists(3), word_lists(2, letters=HELD_OUT_LETTERS)


def unequal(lists: list[TrainingList]) -> list[TrainingList]:
    """The lists, each followed by one with other ids whose passages are all equally relevant."""
    alike = [replace(item, query=Query(f"{item.query.text}?"), relevance=(0.0,) * 4) for item in lists]
    return [item for pair in zip(lists, alike, strict=True) for item in pair]


def numbered_list(n: int, name: str = "q", best: tuple[int, ...] = (0,)) -> TrainingList:
    passages = tuple(Passage(f"{position:03}", f"text {position}") for position in range(n))
    return TrainingList(Query(name), passages, tuple(5.0 if position in best else 1.0 for position in range(n)))


def positions_of(window: TrainingList) -> list[int]:
    return [int(passage.doc_id) for passage in window.passages]


def windows_of(
    lists: list[TrainingList], epochs: int = 2, seed: int = 3, share: float = 0.5
) -> TrainingWindows[TrainingList, TrainingList]:
    return TrainingWindows(lists, WindowSampling(6, 2, share).sample, epochs * len(lists), seed)


def test_window_depends_on_seed_and_index_alone():
    lists = [numbered_list(9, str(number)) for number in range(7)]
    forward, backward = windows_of(lists), windows_of(lists)
    in_order = [forward[index] for index in range(14)]
    assert [backward[index] for index in reversed(range(14))] == in_order[::-1]
    assert [windows_of(lists, epochs=50)[index] for index in range(14)] == in_order
    assert [windows_of(lists, seed=4)[index] for index in range(14)] != in_order


def test_each_epoch_shows_each_list_once_in_a_new_order():
    lists = [numbered_list(4, str(number)) for number in range(30)]
    windows = windows_of(lists, epochs=3)
    epochs = [[windows[30 * epoch + position].query.text for position in range(30)] for epoch in range(3)]
    assert len(windows) == 90
    assert all(sorted(epoch) == sorted(str(number) for number in range(30)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


@given(n=st.integers(2, 12), smallest=st.integers(2, 5), wider=st.integers(0, 5), seed=st.integers(), data=st.data())
def test_windows_hold_a_best_passage_and_fit_the_sizes(n, smallest, wider, seed, data):
    best = tuple(data.draw(st.sets(st.integers(0, n - 1), min_size=1)))
    item = numbered_list(n, best=best)
    window = WindowSampling(smallest + wider, smallest, 0.5).sample(item, str(seed))
    assert min(n, smallest) <= len(window.passages) <= min(n, smallest + wider)
    assert set(positions_of(window)) & set(best)
    assert len(set(positions_of(window))) == len(window.passages)
    assert window.relevance == tuple(item.relevance[position] for position in positions_of(window))


@pytest.mark.parametrize(("share", "in_order"), [(0.0, 200), (1.0, 0)])
def test_shuffled_share_of_windows_is_in_random_order(share, in_order):
    """A random order of 20 passages is practically never the list's."""
    windows = TrainingWindows([numbered_list(30)], WindowSampling(20, 20, share).sample, n_windows=200, seed=0)
    found = [positions_of(windows[index]) for index in range(200)]
    assert sum(positions == sorted(positions) for positions in found) == in_order


def test_held_out_windows_are_the_first_passages_of_the_lists():
    held_out = held_out_windows(ListArguments(lists="", window_size=4), [numbered_list(9), numbered_list(2)])
    assert list(map(positions_of, held_out or ())) == [[0, 1, 2, 3], [0, 1]]


# --- lists and held-out lists


def read(folder: Path, held_out: list[TrainingList]) -> list[str]:
    """The queries of the held-out lists that are kept."""
    write_lists(folder / "lists.jsonl", LISTS)
    write_lists(folder / "held-out.jsonl", held_out)
    files = ListArguments(lists=str(folder / "lists.jsonl"), eval_lists=str(folder / "held-out.jsonl"))
    lists, kept = read_training_lists(files)
    assert len(lists) == len(LISTS)
    return [item.query.text for item in kept]


def test_lists_of_queries_that_are_trained_on_are_left_out_whatever_their_ids_and_passages(tmp_path, caplog):
    trained = replace(LISTS[0], query=replace(LISTS[0].query, query_id="other"), passages=OTHERS[0].passages)
    assert read(tmp_path, [*OTHERS, trained]) == [item.query.text for item in OTHERS]
    (message,) = caplog.messages
    assert "1 of the 3 lists of --eval-lists" in message
    assert message.endswith("they are left out")


def test_query_with_another_instruction_is_another_one(tmp_path):
    other = replace(LISTS[0], query=Query(LISTS[0].query.text, instruction="the other way round"))
    assert read(tmp_path, [other]) == [LISTS[0].query.text]


def test_training_lists_are_refused_as_held_out_lists(tmp_path):
    with pytest.raises(ConfigError, match=r"3 of the 3 lists of --eval-lists .* so that nothing is held out"):
        read(tmp_path, LISTS)


@pytest.mark.parametrize(
    ("given", "smallest", "expected"), [(26, 26, (4, 4)), (20, 0, (4, 0)), (4, 2, (4, 2)), (3, 0, (3, 0))]
)
def test_windows_that_no_list_fills_become_those_of_the_longest_list_with_a_warning(caplog, given, smallest, expected):
    """The manifest of the result names the window that it is served with."""
    arguments = ListArguments(lists="my.jsonl", window_size=given, min_window_size=smallest)
    found = with_filled_windows(arguments, [*word_lists(2, passages=3), *word_lists(1, passages=4)], None)
    assert (found.window_size, found.min_window_size) == expected
    warned = (
        f"windows, and the size in the manifest, have 4 passages instead of {given}: no list of --lists my.jsonl has"
    )
    assert (warned in caplog.text) == (given > 4)


def test_base_with_a_manifest_keeps_windows_that_it_has_seen():
    arguments = ListArguments(lists="", window_size=26)
    assert with_filled_windows(arguments, word_lists(2), read_manifest(bundled.FIRST)).window_size == 20


def test_lists_without_unequal_relevance_are_neither_trained_on_nor_held_out(tmp_path):
    paths = {}
    for name, lists in (("lists", LISTS), ("eval_lists", OTHERS)):
        paths[name] = str(tmp_path / name)
        write_lists(tmp_path / name, unequal(lists))
    assert read_training_lists(ListArguments(**paths)) == (LISTS, OTHERS)
