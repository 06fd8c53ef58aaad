"""The identity ranker keeps the order."""

from __future__ import annotations

import pytest

from rerank.rankers.base import rank_windows
from rerank.rankers.identity import IdentityRanker
from rerank.types import Passage, Query, Window


@pytest.mark.parametrize("n", [0, 1, 2, 100])
def test_order_is_kept(n: int) -> None:
    ranker = IdentityRanker()
    prepared = ranker.prepare(Query("q"), [Passage(str(i), "same text") for i in range(n)])
    (ranking,) = rank_windows(ranker, [Window(prepared.query, prepared.passages)])
    assert ranking.permutation == tuple(range(n))
    assert prepared.truncated_doc_ids == ()


def test_empty_batch_gives_no_rankings() -> None:
    assert rank_windows(IdentityRanker(), []) == []
