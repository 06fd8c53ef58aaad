"""Latency, throughput and cost of responses."""

from __future__ import annotations

from typing import Any

import pytest
from rerank_eval.efficiency import busy_s, efficiency, warnings
from rerank_eval.trace import RankedList, Response


def response(wall_ms: float, ended_at: float, **execution: Any) -> Response:
    return Response("q", wall_ms, ended_at, RankedList(("a",), (1.0,), (0,), execution))


@pytest.mark.parametrize(
    ("walls", "p50", "p99"), [([250.0], 250.0, 250.0), ([100.0] * 98 + [500.0, 900.0], 100.0, 504.0)]
)
def test_latencies_are_percentiles(walls: list[float], p50: float, p99: float) -> None:
    found = efficiency([response(ms, 10.0) for ms in walls])
    assert (found["p50 ms"], found["p99 ms"]) == pytest.approx((p50, p99))
    assert found["queries/s"] == pytest.approx(len(walls) / (max(walls) / 1000))


@pytest.mark.parametrize(
    ("responses", "seconds"),
    [
        ([(2000.0, 12.0), (2000.0, 13.0)], 3.0),
        ([(5000.0, 10.0), (1000.0, 8.0)], 5.0),
        ([(1000.0, 10.0), (1000.0, 5000.0)], 2.0),
    ],
    ids=["overlap", "one within another", "a pause before a resumed run"],
)
def test_time_in_which_anything_was_answered_is_counted_once(
    responses: list[tuple[float, float]], seconds: float
) -> None:
    assert busy_s([response(*span) for span in responses]) == pytest.approx(seconds)


def test_costs_are_means_and_warnings_are_sums() -> None:
    """An int64 is a string in JSON."""
    written = {"decode_tokens": "100", "decode_ms": 6.0, "model_ms": 8.0}
    served = {"windows": 9, "rounds": 9, "tokens": "1800", **written, "completeness": "COMPLETENESS_FULL"}
    partial = {
        "windows": 1,
        "rounds": 1,
        "tokens": "200",
        "completeness": "COMPLETENESS_PARTIAL",
        "truncated_doc_ids": ["a", "b"],
        "query_truncated": True,
        "repaired_identifiers": 3,
        "generated_identifiers": 12,
    }
    responses = [response(1, 1, **served), response(1, 2, **partial)]
    expected = {"windows": 5.0, "rounds": 5.0}
    expected |= {"prefill tokens": 950.0, "prefill ms": 1.0, "decode tokens": 50.0, "decode ms": 3.0}
    assert efficiency(responses).items() > expected.items()
    counts, queries = warnings(responses)
    assert counts.startswith("1 lists were reranked only in part, 2 passages were truncated, 3 of 12 places")
    assert counts.endswith(" in generated permutations were repaired (25%).")
    assert queries.startswith("1 queries are longer")
    (kept,) = warnings([response(1, 1, **served | {"completeness": "COMPLETENESS_NONE"})])
    assert kept == "1 lists kept the order of their first stage."
