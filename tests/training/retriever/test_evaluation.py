"""Evaluation of held-out queries: the measures of dense retrieval and the paired test."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from rerank_training.retriever.evaluation import changes, evaluate_index
from scipy import stats

from rerank.readers.qrels import Qrel
from rerank.types import Query

R, NDCG = "R@100", "nDCG@10"


def test_measures_are_those_of_dense_retrieval(index_folder: Path) -> None:
    queries = [Query("how long does a flea live", "1"), Query("what bakers do at night", "2")]
    qrels = [Qrel("1", "flea", 1), Qrel("2", "baker", 1), Qrel("2", "not-in-the-index", 1)]
    found = evaluate_index(index_folder, "cpu", queries, qrels)
    assert found[R] == {"1": 1.0, "2": 0.5}
    assert found[NDCG] == {"1": 1.0, "2": pytest.approx(1 / (1 + 1 / math.log2(3)))}


def test_change_is_paired_by_query() -> None:
    before = {R: {"1": 0.1, "2": 0.5, "3": 0.3}}
    after = {R: {"3": 0.2, "1": 0.4, "2": 0.6}}
    change = changes(before, after)[R]
    assert (change.before, change.after) == (pytest.approx(0.3), pytest.approx(0.4))
    assert change.p == pytest.approx(stats.ttest_rel([0.4, 0.6, 0.2], [0.1, 0.5, 0.3]).pvalue)
