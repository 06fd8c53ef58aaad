"""Times and counts of answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from rerank_eval.answers import Answer, Reply
from rerank_eval.efficiency import busy_s, efficiency


def answer(wall_ms: float, ended_at: float, **execution: Any) -> Answer:
    return Answer("q", wall_ms, ended_at, Reply((), (), (), execution))


def test_no_answers_have_no_efficiency() -> None:
    assert efficiency([]) is None


def test_percentiles_are_those_of_numpy() -> None:
    walls = [float(ms) for ms in range(1, 101)]
    found = efficiency([answer(ms, ms) for ms in walls])
    assert found is not None
    assert [found.p50_ms, found.p95_ms, found.p99_ms] == pytest.approx(np.percentile(walls, [50, 95, 99]).tolist())


def test_one_answer_is_all_percentiles() -> None:
    found = efficiency([answer(250.0, 10.0)])
    assert found is not None
    assert (found.p50_ms, found.p99_ms, found.queries_per_s) == (250.0, 250.0, pytest.approx(4.0))


def test_answers_at_the_same_time_share_it() -> None:
    """Two seconds each, the second begun one second after the first: three seconds in all."""
    assert busy_s([answer(2000.0, 12.0), answer(2000.0, 13.0)]) == pytest.approx(3.0)


def test_an_answer_within_another_adds_nothing() -> None:
    assert busy_s([answer(5000.0, 10.0), answer(1000.0, 8.0)]) == pytest.approx(5.0)


def test_the_pause_before_a_resumed_run_is_not_counted() -> None:
    assert busy_s([answer(1000.0, 10.0), answer(1000.0, 5000.0)]) == pytest.approx(2.0)


def test_counts_are_means_and_troubles_are_sums() -> None:
    """int64 is a string in JSON."""
    served = {"windows": 9, "rounds": 9, "tokens": "1800", "completeness": "COMPLETENESS_FULL"}
    partial = {
        "windows": 1,
        "rounds": 1,
        "tokens": "200",
        "completeness": "COMPLETENESS_PARTIAL",
        "truncated_doc_ids": ["a", "b"],
        "repaired_identifiers": 3,
    }
    found = efficiency([answer(1, 1, **served), answer(1, 2, **partial)])
    assert found is not None
    assert (found.windows, found.rounds, found.tokens) == (5.0, 5.0, 1000.0)
    assert (found.incomplete, found.truncated, found.repaired) == (1, 2, 3)
