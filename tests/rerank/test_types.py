"""What the rows compute of themselves."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerank.types import Completeness, Passage, Query, Trace, WindowRanking, WindowTrace


@given(st.lists(st.sampled_from([-1e300, -1.0, -0.0, 0.0, 5e-324, 1.0, 1e300])))
def test_permutation_is_best_first_and_equal_scores_keep_their_order(scores: list[float]) -> None:
    permutation = WindowRanking(tuple(scores)).permutation
    assert sorted(permutation) == list(range(len(scores)))
    for above, below in pairwise(permutation):
        assert scores[above] > scores[below] or (scores[above] == scores[below] and above < below)


def test_no_scores_no_permutation() -> None:
    assert WindowRanking(()).permutation == ()


def test_rows_compare_without_their_vectors() -> None:
    vector = np.ones(3, dtype=np.float32)
    assert Query("q", vector=vector) == Query("q")
    assert Passage("d", "text", vector=vector) == Passage("d", "text")
    assert Passage("d", "text") != Passage("d", "other text")


def test_rows_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        Query("q").text = "other"  # type: ignore[misc]


@pytest.mark.parametrize(("tokens", "total"), [((), 0), ((7,), 7), ((7, 5, 0), 12)])
def test_trace_adds_up_the_tokens_of_its_windows(tokens: tuple[int, ...], total: int) -> None:
    trace = Trace(
        model="m",
        ranker="r",
        model_id="",
        model_revision="",
        template_sha256="",
        strategy="s",
        windows=tuple(WindowTrace((0,), (0,), count) for count in tokens),
        rounds=len(tokens),
        truncated_doc_ids=(),
        repairs=0,
        completeness=Completeness.FULL,
        reason="",
        queue_ms=0.0,
        prepare_ms=0.0,
        model_ms=0.0,
        total_ms=0.0,
    )
    assert trace.tokens == total
