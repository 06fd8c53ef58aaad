"""The weights that rank a collection are chosen by the others."""

from __future__ import annotations

import numpy as np
import pytest

from rerank.types import FirstStageKind
from scripts.reproduce.left_out import Measured, choose, left_out


def _lists(collection: str, kind: FirstStageKind, best: tuple[int, int, int], queries: int = 4) -> Measured:
    """Lists whose nDCG@10 is .9 with the weights at `best`, .5 with all others, and .6 in the first stage's order."""
    values = np.full((3, 5, 3, queries), 0.5)
    values[best] = 0.9
    return Measured(collection, "bm25", kind, np.full(queries, 0.6), values)


def test_collection_does_not_choose_its_own_weights() -> None:
    lexical = FirstStageKind.LEXICAL
    measured = [_lists("a", lexical, (0, 1, 2)), _lists("b", lexical, (0, 1, 2)), _lists("c", lexical, (1, 3, 0))]
    gains = {lists.collection: comparison.difference for lists, _, comparison in left_out(measured)}
    assert gains["a"] == gains["b"] == pytest.approx(0.3)
    assert gains["c"] == pytest.approx(-0.1)


def test_kinds_of_lists_share_all_weights_but_that_of_the_first_stage() -> None:
    measured = [_lists("a", FirstStageKind.LEXICAL, (1, 0, 2)), _lists("a", FirstStageKind.HYBRID, (1, 4, 2))]
    chosen = choose(measured)
    assert str(chosen) == "lexical 0.25, hybrid 0.8, sparse 0.6, smoothing 0.25"


def test_collection_counts_once_however_many_lists_it_has() -> None:
    lexical = FirstStageKind.LEXICAL
    measured = [
        *[_lists("a", lexical, (0, 0, 0))] * 3,
        _lists("b", lexical, (2, 2, 2)),
        _lists("c", lexical, (2, 2, 2)),
    ]
    assert choose(measured).first_stage == {lexical: 2}
