"""The report of an evaluation: tables, significance, dependence on the first stage's order, and warnings."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rerank_eval.efficiency import Efficiency
from rerank_eval.measures import MetricValues
from rerank_eval.orders import ORIGINAL, UNORDERED, Order
from rerank_eval.report import FIRST_STAGE, ORACLE, Report, comparisons, markdown, order_dependence
from rerank_eval.results import SystemResult
from rerank_eval.statistics import holm, paired_differences, t_test


def result(name: str, values: list[float], missing: tuple[str, ...] = (), **counts: int) -> SystemResult:
    per_query = {f"q{number}": {"nDCG@10": value} for number, value in enumerate(values)}
    warnings = {"incomplete": 0, "truncated": 0, "repaired": 0} | counts
    cost = Efficiency(10.0, 20.0, 30.0, 2.5, windows=9.0, rounds=9.0, tokens=1800.0, **warnings)
    return SystemResult(name, MetricValues({"nDCG@10": sum(values) / len(values)}, per_query, missing), cost)


FIRST = result("a", [0.5, 0.6, 0.7, 0.4])
BETTER = result("b", [0.6, 0.7, 0.7, 0.3])
WORSE = result("c", [0.1, 0.2, 0.1, 0.0])
UPPER_BOUND = SystemResult(ORACLE, result("", [1.0, 1.0, 1.0, 1.0]).metrics)


def evaluation(*results: SystemResult, title: str = "t", **settings: object) -> Report:
    return Report("d", title, results, UPPER_BOUND, settings)


def with_orders(by_order: dict[str, dict[Order, float]]) -> Report:
    return Report("d", "t", [FIRST], UPPER_BOUND, {}, by_order=by_order)


def rows(text: str, heading: str) -> dict[str, list[str]]:
    """The cells of the table below a heading, by the first cell of each row."""
    table = text.partition(heading)[2].partition("\n\n|")[2].partition("\n\n")[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.split("\n")]
    return {row[0]: row[1:] for row in cells}


def test_systems_are_compared_with_the_first() -> None:
    table = rows(markdown(evaluation(FIRST, BETTER, WORSE)), "compared with a")
    assert table["b"][0] == "+0.0250"
    assert table["b"][5] == "2/1/1"
    assert table["c"][5] == "0/0/4"
    assert ORACLE not in table
    assert "compared with" not in markdown(evaluation(FIRST))


def test_every_system_is_compared_with_the_first_stage() -> None:
    """Wherever its row stands; one system has no other comparison."""
    first_stage = result(FIRST_STAGE, [0.5, 0.5, 0.5, 0.5])
    two = markdown(replace(evaluation(FIRST, BETTER, first_stage), first_stage=FIRST_STAGE))
    table = rows(two, "compared with first stage")
    assert (table["a"][0], table["b"][0]) == ("+0.0500", "+0.0750")
    assert rows(two, "compared with a")["b"][0] == "+0.0250"
    one = markdown(replace(evaluation(FIRST, first_stage), first_stage=FIRST_STAGE))
    assert one.count("compared with") == 1
    assert rows(one, "compared with first stage")["a"][0] == "+0.0500"
    is_first = markdown(replace(evaluation(first_stage, FIRST, BETTER), first_stage=FIRST_STAGE))
    assert is_first.count("compared with") == 1


def test_p_values_are_adjusted_over_all_comparisons() -> None:
    raw = [t_test(paired_differences(other.metrics.values(), FIRST.metrics.values())) for other in (BETTER, WORSE)]
    assert [p for _, _, p in comparisons([FIRST, BETTER, WORSE])] == pytest.approx(holm(raw))


def test_partial_lists_truncated_passages_and_repairs_are_reported() -> None:
    text = markdown(evaluation(result("a", [0.5], incomplete=1, truncated=7, repaired=2)))
    assert "1 lists were reranked only in part, 7 passages were truncated, 2 identifiers" in text


def test_dependence_is_one_for_the_first_stage_and_zero_for_the_oracle() -> None:
    reversed_ = Order("reversed")
    by_order = {
        FIRST_STAGE: {ORIGINAL: 0.5, reversed_: 0.1},
        "half": {ORIGINAL: 0.7, reversed_: 0.5},
        ORACLE: {ORIGINAL: 0.9, reversed_: 0.9},
    }
    assert order_dependence(by_order) == pytest.approx({FIRST_STAGE: 1.0, "half": 0.5, ORACLE: 0.0})
    assert rows(markdown(with_orders(by_order)), "first stage's order")["half"] == ["0.7000", "0.5000", "50%"]
    with_unordered = {name: {**row, UNORDERED: 0.3} for name, row in by_order.items()}  # which is no worse order
    assert order_dependence(with_unordered) == order_dependence(by_order)
    assert order_dependence({FIRST_STAGE: {ORIGINAL: 0.5, reversed_: 0.5}}) == {}  # the order does not matter to it
    assert order_dependence({FIRST_STAGE: {reversed_: 0.5, Order("shuffled-1"): 0.4}}) == {}


def test_shuffled_orders_share_a_column_with_their_range() -> None:
    orders = [ORIGINAL, Order("shuffled-1"), Order("shuffled-2")]
    by_order = {FIRST_STAGE: dict(zip(orders, (0.5, 0.1, 0.3), strict=True))}
    table = rows(markdown(with_orders(by_order)), "first stage's order")
    assert table[FIRST_STAGE] == ["0.5000", "0.2000 (0.1000 to 0.3000)", "100%"]


def test_unordered_lists_are_compared_with_each_order() -> None:
    pairs = [(result("a", [0.5, 0.7, 0.9]), result("a.unordered", [0.4, 0.7, 0.7]))]
    table = rows(markdown(replace(evaluation(FIRST), unordered=pairs)), "Ordered and unordered lists")
    assert table["a"][:3] == ["0.7000", "0.6000", "-0.1000"]
    assert 0 < float(table["a"][-1]) < 1
    assert "unordered" not in markdown(evaluation(FIRST))


def test_missing_queries_of_several_systems_are_named_once() -> None:
    text = markdown(evaluation(*(result(name, [0.5, 0.0], missing=("q1",)) for name in ("a", "b"))))
    assert text.count("count as 0") == 1
    assert "a, b: 1 judged queries have no ranking and count as 0: q1." in text


def test_header_names_the_model_and_its_hash() -> None:
    system = replace(FIRST, fingerprint={"ranker": "first", "model_id": "org/m", "model_revision": "abc", "depth": 3})
    assert "- **a**: first, model org/m, hash abc\n" in markdown(evaluation(system, BETTER))


def test_settings_are_written_as_a_person_writes_them() -> None:
    settings = {
        "ranker": ["a", "b"],
        "only_asked": True,
        "strategy": None,
        "template": "",
        "seed": 0,
        "versions": {"python": "3.11"},
    }
    text = markdown(evaluation(FIRST, **settings, qrels_sha256="ab"))
    assert text.partition("| --- | :--- |\n")[2].splitlines()[:4] == [
        "| ranker | a, b |",
        "| only asked | yes |",
        "| versions | python 3.11 |",
        "| qrels SHA-256 | ab |",
    ]
    assert "seed" not in text
