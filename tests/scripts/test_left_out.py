"""The numbers that rank a collection are chosen by the others, and harm none of them if any do not."""

from __future__ import annotations

import numpy as np
import pytest

from scripts.reproduce.left_out import TRIED, Measured, as_markdown, choose, left_out


def _lists(collection: str, best: int, harm: int | None = None) -> Measured:
    """Lists whose nDCG@10 is .9 with the numbers at `best`, .5 at `harm`, .65 with others; .6 in the first stage."""
    values = np.full((len(TRIED), 4), 0.65)
    values[best] = 0.9
    if harm is not None:
        values[harm] = 0.5
    return Measured(collection, f"{collection}, bm25", np.full(4, 0.6), values)


def test_collection_does_not_choose_its_own_numbers() -> None:
    measured = [_lists("a", 1), _lists("b", 1), _lists("c", 7), _lists("d", 7)]
    gains = {lists.collection: comparison.difference for lists, _, comparison in left_out(measured)}
    assert gains == pytest.approx(dict.fromkeys("abcd", 0.05))
    assert [chosen for _, chosen, _ in left_out(measured)] == [7, 7, 1, 1]


def test_numbers_that_harm_a_list_are_not_chosen_unless_all_do() -> None:
    assert choose([_lists("a", 1), _lists("b", 1), _lists("c", 7, harm=1)]) == 7
    harmed = [Measured(name, name, np.full(4, 0.6), np.full((len(TRIED), 4), 0.4)) for name in "ab"]
    assert choose(harmed) == 0


def test_collection_counts_once_however_many_lists_it_has() -> None:
    assert choose([*[_lists("a", 0)] * 3, _lists("b", 2), _lists("c", 2)]) == 2


def test_table_says_what_is_worse() -> None:
    text = as_markdown([_lists("a", 1, harm=2), _lists("b", 2)])
    assert "Worse by more than 0.005 on 1 of 2 lists" in text
    assert "| mean |  | 0.6000 |" in text
