"""Training lists and held-out lists of a run: no query is in both."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from rerank_training.lists.files import write_lists
from rerank_training.lists.training_list import TrainingList
from rerank_training.trainer.data import read_training_lists, with_filled_windows
from rerank_training.trainer.flags import ListArguments

from rerank.checkpoints import bundled
from rerank.errors import ConfigError
from rerank.types import Query
from tests.word_lists import HELD_OUT_LETTERS, word_lists

LISTS, OTHERS = word_lists(3), word_lists(2, letters=HELD_OUT_LETTERS)


def read(folder: Path, held_out: list[TrainingList]) -> list[str]:
    """The queries of the held-out lists that are kept."""
    write_lists(folder / "lists.jsonl", LISTS)
    write_lists(folder / "held-out.jsonl", held_out)
    files = ListArguments(lists=str(folder / "lists.jsonl"), eval_lists=str(folder / "held-out.jsonl"))
    lists, kept = read_training_lists(files)
    assert len(lists) == len(LISTS)
    return [item.query.text for item in kept]


def test_lists_of_queries_that_are_trained_on_are_left_out_whatever_their_ids_and_passages(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trained = replace(LISTS[0], query=replace(LISTS[0].query, query_id="other"), passages=OTHERS[0].passages)
    assert read(tmp_path, [*OTHERS, trained]) == [item.query.text for item in OTHERS]
    (message,) = caplog.messages
    assert "1 of the 3 lists of --eval-lists" in message
    assert message.endswith("they are left out")


def test_query_with_another_instruction_is_another_one(tmp_path: Path) -> None:
    other = replace(LISTS[0], query=Query(LISTS[0].query.text, instruction="the other way round"))
    assert read(tmp_path, [other]) == [LISTS[0].query.text]


def test_training_lists_are_refused_as_held_out_lists(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"3 of the 3 lists of --eval-lists .* so that nothing is held out"):
        read(tmp_path, LISTS)


@pytest.mark.parametrize(
    ("given", "smallest", "expected"), [(26, 26, (4, 4)), (20, 0, (4, 0)), (4, 2, (4, 2)), (3, 0, (3, 0))]
)
def test_windows_that_no_list_fills_become_those_of_the_longest_list_with_a_warning(
    caplog: pytest.LogCaptureFixture, given: int, smallest: int, expected: tuple[int, int]
) -> None:
    """The manifest of the result names the window that it is served with."""
    arguments = ListArguments(lists="my.jsonl", window_size=given, min_window_size=smallest)
    found = with_filled_windows(arguments, [*word_lists(2, passages=3), *word_lists(1, passages=4)], "base")
    assert (found.window_size, found.min_window_size) == expected
    warned = f"windows have 4 passages, and so says the manifest, instead of {given}: no list of --lists my.jsonl has"
    assert (warned in caplog.text) == (given > 4)


def test_base_with_a_manifest_keeps_windows_that_it_has_seen() -> None:
    arguments = ListArguments(lists="", window_size=26)
    assert with_filled_windows(arguments, word_lists(2), str(bundled.FIRST)).window_size == 20
