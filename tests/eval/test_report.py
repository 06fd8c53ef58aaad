"""The report says what the numbers are worth, and leaves nothing out that would change how they are read."""

from __future__ import annotations

import pytest
from rerank_eval.efficiency import Efficiency
from rerank_eval.experiment import Result
from rerank_eval.measures import Report
from rerank_eval.orders import ORIGINAL, Order
from rerank_eval.report import FIRST_STAGE, ORACLE, comparisons, html, markdown, order_shares
from rerank_eval.statistics import holm, t_test
from rerank_eval.statistics import paired_differences as differences


def result(name: str, values: list[float], missing: tuple[str, ...] = (), **counts: int) -> Result:
    per_query = {f"q{place}": {"nDCG@10": value} for place, value in enumerate(values)}
    troubles = {"incomplete": 0, "truncated": 0, "repaired": 0} | counts
    cost = Efficiency(10.0, 20.0, 30.0, 2.5, windows=9.0, rounds=9.0, tokens=1800.0, **troubles)
    return Result(name, Report({"nDCG@10": sum(values) / len(values)}, per_query, missing), {1: cost})


FIRST = result("a", [0.5, 0.6, 0.7, 0.4])
BETTER = result("b", [0.6, 0.7, 0.7, 0.3])
WORSE = result("c", [0.1, 0.2, 0.1, 0.0])
BOUND = Result(ORACLE, result("", [1.0, 1.0, 1.0, 1.0]).report)


def rows(text: str, heading: str) -> dict[str, list[str]]:
    """The cells of the table below a heading, by the first cell of each row."""
    table = text.partition(heading)[2].partition("\n\n|")[2].partition("\n\n")[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.split("\n")]
    return {row[0]: row[1:] for row in cells}


def test_systems_are_compared_with_the_first() -> None:
    found = rows(markdown("t", [FIRST, BETTER, WORSE], BOUND, {}, {}), "against a")
    assert found["b"][0] == "+0.0250"
    assert found["b"][5] == "2/1/1"
    assert found["c"][5] == "0/0/4"
    assert ORACLE not in found


def test_p_values_are_adjusted_over_the_family() -> None:
    raw = [t_test(differences(other.report.values(), FIRST.report.values())) for other in (BETTER, WORSE)]
    assert [p for _, _, p in comparisons([FIRST, BETTER, WORSE])] == pytest.approx(holm(raw))


def test_a_single_system_is_compared_with_nothing() -> None:
    assert "against" not in markdown("t", [FIRST], BOUND, {}, {})


def test_margin_adds_its_test() -> None:
    text = markdown("t", [FIRST, BETTER], BOUND, {}, {}, margin=0.5)
    assert "p (not worse by 0.5)" in text
    assert float(rows(text, "against a")["b"][-1]) < 0.05


def test_missing_queries_are_counted_and_named() -> None:
    text = markdown("t", [result("a", [0.5, 0.0], missing=("q1",))], BOUND, {}, {})
    assert "a: 1 judged queries have no answer, count 0: q1." in text


def test_what_was_not_read_in_full_is_said() -> None:
    text = markdown("t", [result("a", [0.5], incomplete=1, truncated=7, repaired=2)], BOUND, {}, {})
    assert "1 lists were not reranked in full, 7 passages were cut to fit, 2 identifiers" in text


def test_share_is_one_for_the_first_stage_and_zero_for_the_oracle() -> None:
    reversed_ = Order("reversed")
    by_order = {
        FIRST_STAGE: {ORIGINAL: 0.5, reversed_: 0.1},
        "half": {ORIGINAL: 0.7, reversed_: 0.5},
        ORACLE: {ORIGINAL: 0.9, reversed_: 0.9},
    }
    assert order_shares(by_order) == pytest.approx({FIRST_STAGE: 1.0, "half": 0.5, ORACLE: 0.0})
    assert rows(markdown("t", [FIRST], BOUND, by_order, {}), "first stage's order")["half"] == [
        "0.7000",
        "0.5000",
        "50%",
    ]


def test_shuffles_are_one_column_with_their_range() -> None:
    orders = [ORIGINAL, Order("shuffled-1"), Order("shuffled-2")]
    by_order = {FIRST_STAGE: dict(zip(orders, (0.5, 0.1, 0.3), strict=True))}
    found = rows(markdown("t", [FIRST], BOUND, by_order, {}), "first stage's order")
    assert found[FIRST_STAGE] == ["0.5000", "0.2000 (0.1000 to 0.3000)", "100%"]


def test_an_order_that_is_worth_nothing_has_no_share() -> None:
    assert order_shares({FIRST_STAGE: {ORIGINAL: 0.5, Order("reversed"): 0.5}}) == {}
    assert order_shares({FIRST_STAGE: {Order("reversed"): 0.5, Order("shuffled-1"): 0.4}}) == {}


def test_page_holds_the_tables_and_escapes_markup() -> None:
    page = html(markdown("t <b>", [FIRST, BETTER], BOUND, {}, {"path": "<script>"}))
    assert page.count("<table>") == 4
    assert "<script>" not in page
