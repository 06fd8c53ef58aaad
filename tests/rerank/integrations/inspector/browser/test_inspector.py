"""The inspector in a real browser: search, comparison, links, hostile passages, errors, keyboard, narrow
screens, and API keys."""

import json
import re
import urllib.request
from collections.abc import Sequence
from typing import Any

import ir_measures
import pytest
from ir_measures import ScoredDoc, nDCG

from rerank.access.keys import CallerLimits, add_key
from rerank.readers.qrels import Qrel
from tests.fakes import NumberRanker
from tests.rerank.integrations.inspector.browser.conftest import new_tab
from tests.serving import http_service

pytestmark = pytest.mark.browser


def searched(base: str, **fields: object) -> Any:
    """The reply of the service itself."""
    body = json.dumps({"model": "number", **fields}).encode()
    request = urllib.request.Request(f"{base}/search", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read())


def passages(numbers: Sequence[float]) -> str:
    return "\n".join(f"relevance {number}" for number in numbers)


def test_search_from_the_form_shows_both_orders(tab):
    page = tab.open()
    page.get_by_label("Query").fill("moon and tides")
    page.get_by_label("First stage").select_option("dense")
    page.get_by_role("button", name="Rank", exact=True).click()
    page.locator(".ranking").wait_for()
    reply = searched(tab.base, query="moon and tides", first_stage="FIRST_STAGE_DENSE")
    by_position = sorted(reply["results"], key=lambda result: result["original_position"])
    assert tab.names("before") == [result["doc_id"] for result in by_position]
    assert tab.names("after") == [result["doc_id"] for result in reply["results"]]
    assert page.get_by_role("status").inner_text() == "Ranked 12 passages."
    assert page.title() == "moon and tides · rerank inspector"


def test_empty_page_offers_judged_queries_and_without_any_an_example_of_its_own(tab, chromium):
    page = tab.open()
    page.locator(".examples").wait_for()
    assert page.locator(".examples button").all_inner_texts() == ["tides of the moon", "who bites whom"]
    page.get_by_role("button", name="who bites whom").click()
    page.locator(".ranking").wait_for()
    assert page.get_by_label("Query").input_value() == "who bites whom"
    assert page.locator(".examples").count() == 0
    page.go_back()
    page.locator(".examples").wait_for()
    with http_service({"default": NumberRanker()}) as served:
        for other in new_tab(chromium, f"http://{served.http.address}"):
            page = other.open()
            page.get_by_role("button", name="how long does a flea live").click()
            page.locator(".ranking").wait_for()
            assert len(other.names("after")) == 6


def test_models_are_named_once_and_an_instruction_is_asked_for_only_if_one_reads_it(tab, chromium):
    page = tab.open()
    page.locator(".examples").wait_for()
    assert page.locator("[name='a.model'] option").all_inner_texts() == ["number (default)", "identity"]
    assert not page.locator("[name=instruction]").is_visible()
    assert page.locator("#more summary").inner_text() == "Long passages"
    tab.open(instruction="by date").locator("[name=instruction]").wait_for()  # a link that has one shows it
    with http_service({"default": NumberRanker(reads_instruction=True)}) as served:
        for other in new_tab(chromium, f"http://{served.http.address}"):
            page = other.open(a__model="default")
            page.locator(".examples").wait_for()
            assert page.locator("[name='a.model'] option").all_inner_texts() == ["default"]
            page.locator("#more summary").click()
            assert page.locator("[name=instruction]").is_visible()


def test_results_show_their_relevance(tab):
    page = tab.open()
    program = """async () => {
        const { outcomeOf } = await import("/inspector/static/outcome.js");
        const { reportView } = await import("/inspector/static/report.js");
        const result = (doc_id, place, parts) => ({ doc_id, original_position: place, score: 1 - place, ...parts });
        const reply = {
                results: [result("a", 0, { relevance: 0.784 }), result("b", 1, { relevance: 0 }), result("c", 2, {})],
                execution: { truncated_doc_ids: [], windows: 1, rounds: 1, strategy: "s", model: "m" },
                trace: { windows: [], input_order: [] },
                score_kind: "SCORE_KIND_WINDOW_SCORE",
            };
        document.querySelector("#report").replaceChildren(...reportView([outcomeOf("m", reply, 0, {})], {}, {}));
    }"""
    page.evaluate(program)
    rows = page.locator(".order.after .figures").all_inner_texts()
    assert [re.findall(r"(\d+) %", row) for row in rows] == [["78"], ["0"], []]
    assert "relevance in %" in page.locator(".order.after h3").inner_text()
    assert "%" not in page.locator(".order.before").inner_text()


def test_link_holds_the_whole_state(tab):
    page = tab.open()
    page.get_by_text("Rank my own passages").click()
    page.get_by_label("Query").fill("näher & “nearer”?")
    page.get_by_label(re.compile("Passages in first-stage order")).fill(passages([1, 5, 3, 2]))
    page.get_by_role("button", name="Compare with a second system").click()
    page.get_by_role("group", name="System A").get_by_text("Strategy").click()
    page.get_by_role("group", name="System A").get_by_label("Windows").select_option("sliding")
    page.get_by_role("group", name="System A").get_by_label("Window size").fill("2")
    page.get_by_role("button", name="Rank", exact=True).click()
    page.locator(".ranking").wait_for()
    page.get_by_text("A ↔ B").click()

    def seen() -> list[Any]:
        return [tab.names("before"), tab.names("after"), page.locator(".summary").all_inner_texts()[0][:10]]

    before, link = seen(), page.url
    page.goto("about:blank")
    page.goto(link)
    page.locator(".ranking").wait_for()
    assert seen() == before
    assert page.get_by_label("Query").input_value() == "näher & “nearer”?"
    assert page.get_by_label(re.compile("Passages in first-stage order")).input_value() == passages([1, 5, 3, 2])
    assert page.get_by_role("group", name="System A").get_by_label("Window size").input_value() == "2"
    assert page.get_by_role("radio", name="A ↔ B").is_checked()


def test_link_that_a_person_writes_asks_its_query(tab):
    page = tab.page
    page.goto(f"{tab.base}/?query=moon&model=identity&stage=dense")
    tab.wait_for_title("moon")
    assert page.get_by_label("Query").input_value() == "moon"
    assert page.locator("[name='a.model']").input_value() == "identity"
    first = tab.names("before")
    page.get_by_label("Query").fill("bread")
    page.get_by_role("button", name="Rank", exact=True).click()
    tab.wait_for_title("bread")
    assert "moon" not in page.url
    page.go_back()
    tab.wait_for_title("moon")
    assert tab.names("before") == first


def test_two_systems_are_compared(tab):
    state = {"query": "moon", "a.stage": "dense", "compare": 1, "b.stage": "bm25", "b.model": "identity", "view": "ab"}
    page = tab.open(**{name.replace(".", "__"): value for name, value in state.items()})
    ranked = searched(tab.base, query="moon", first_stage="FIRST_STAGE_DENSE")
    kept = searched(tab.base, query="moon", first_stage="FIRST_STAGE_BM25", model="identity")
    assert tab.names("before") == [result["doc_id"] for result in ranked["results"]]
    assert tab.names("after") == [result["doc_id"] for result in kept["results"]]
    assert len(kept["results"]) < len(ranked["results"]), "the systems must differ, or the test shows little"
    page.get_by_text("First stage → B · identity").click()
    assert tab.names("before") == tab.names("after")
    assert "view=b" in page.url


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"depth": 100_000}, "100000 candidates exceed the limit of 1000; send at most 1000"),
        ({"a__model": "nobody"}, "nobody"),
        ({"a__stage": "bm25", "a__feedback": "kl"}, "bm25 has no query vector to update"),
        ({"a__window": 5000}, "5000"),
        ({"source": "pasted"}, "There is no passage to rank. Paste one passage per line."),
    ],
)
def test_refusal_is_shown_and_the_next_search_works(tab, state, message):
    page = tab.open(**{"query": "moon", **state})
    assert message in page.get_by_role("alert").inner_text()
    assert page.locator(".ranking").count() == 0
    tab.expected_refusals()
    tab.open(query="moon")
    assert page.get_by_role("alert").inner_text() == ""
    assert page.locator(".ranking").count() == 1


def test_judged_passages_have_grades_and_both_orders_ndcg(tab):
    page = tab.open(query="Tides of the  moon", a__stage="dense")
    qrels = [Qrel("q", "moon", 1), Qrel("q", "tides", 2), Qrel("q", "desert", 0)]
    values = []
    for side in ("before", "after"):
        run = [ScoredDoc("q", doc_id, -rank) for rank, doc_id in enumerate(tab.names(side))]
        values.append(f"{ir_measures.calc_aggregate([nDCG @ 10], qrels, run)[nDCG @ 10]:.3f}")
    assert " → ".join(values) in page.locator(".summary").inner_text()
    grades = page.locator(".order.before li").filter(has=page.locator(".grade"))
    assert {row.locator(".name").inner_text() for row in grades.all()} == {"moon", "tides", "desert"}
    assert page.locator(".order.before .g2 .name").all_text_contents() == ["tides"]


def test_windows_are_shown_round_by_round(tab):
    pasted = passages([3, 1, 4, 1.5, 9, 2])
    state = {"a__strategy": "sliding", "a__window": 4, "a__stride": 2}
    page = tab.open(source="pasted", query="q", passages=pasted, **state)
    rounds = page.locator(".round")
    headings = [heading.split("number")[0] for heading in rounds.locator("h3").all_text_contents()]
    assert headings == ["Round 1", "Round 2"]
    rows = rounds.first.locator("tbody tr")
    cells = [row.locator("td").all_inner_texts() for row in rows.all()]
    assert [cell[:3] for cell in cells] == [["1", "3", "5"], ["2", "1", "3"], ["3", "4", "6"], ["4", "2", "4"]]
    assert [float(cell[3]) for cell in cells] == [9, 4, 2, 1.5]


def test_feedback_shows_what_the_second_retrieval_found(tab):
    page = tab.open(query="moon", depth=4, a__stage="dense", a__feedback="weighted-ranknet")
    summary = page.locator(".summary").inner_text()
    assert "Feedback moved the query vector" in summary
    new = page.locator(".order.before .row.new .name").all_text_contents()
    assert new, "this query must find something new, or the test shows nothing"
    assert new == tab.names("before")[4:]
    page.get_by_text("First ranking → result").click()
    assert tab.names("before")[4:] == new


def test_passage_opens_and_closes_with_the_keyboard(tab):
    page = tab.open(query="moon", a__stage="dense")
    button = page.locator(".order.after button").first
    button.focus()
    assert page.locator(".lines path.linked").count() == 1
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name=tab.names("after")[0])
    assert dialog.is_visible()
    assert "first stage" in dialog.inner_text()
    page.keyboard.press("Escape")
    assert not dialog.is_visible()
    assert button.evaluate("element => element === document.activeElement")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 768, 1280])
def test_page_is_accessible_and_fits_its_width(chromium, base, scheme, width):
    for tab in new_tab(chromium, base, viewport={"width": width, "height": 844}, color_scheme=scheme, bypass_csp=True):
        page = tab.open(query="tides of the moon", a__stage="dense", compare=1, view="ab", b__feedback="rocchio")
        assert page.locator(".lines path").count() == 12
        assert tab.accessibility_problems() == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.locator(".order.after button").first.click()
        assert tab.accessibility_problems() == []


def test_part_that_decided_is_marked_in_the_passage(tab):
    """Places count code points of the text: the title in front of it is not part of that."""
    page = tab.open()
    program = """async (parts) => {
        const { outcomeOf } = await import("/inspector/static/outcome.js");
        const { openPassage } = await import("/inspector/static/passage.js");
        const result = { doc_id: "a", ...parts, original_position: 0, score: 1 };
        const reply = {
                results: [{ ...result, span: { start: 8, end: 15 } }],
                execution: { truncated_doc_ids: [] },
                trace: { windows: [], input_order: [] },
            };
        openPassage(document.querySelector("#passage"), "a", [outcomeOf("model", reply, 0, {})]);
        return [...document.querySelectorAll("#passage mark")].map((mark) => mark.textContent);
    }"""
    assert page.evaluate(program, {"title": "T", "text": "🙂🙂 one. Two 🙂. Three."}) == ["Two 🙂. "]
    assert page.locator(".full-text").inner_text() == "T 🙂🙂 one. Two 🙂. Three."
    assert page.evaluate(program, {"title": "", "text": "T 🙂🙂 one. Two 🙂. Three."}) == [". Two 🙂"]


def test_key_is_asked_for_and_is_never_part_of_the_link(chromium, index, tmp_path):
    key = add_key(tmp_path / "keys", "tester", CallerLimits())
    with http_service({"number": NumberRanker()}, index, keys=tmp_path / "keys") as served:
        for tab in new_tab(chromium, f"http://{served.http.address}"):
            page = tab.open()
            page.locator(".problem").wait_for()
            assert "API key" in page.get_by_role("alert").inner_text()
            page.get_by_label("Query").fill("moon")
            page.get_by_label("API key").fill(key)
            page.get_by_role("button", name="Rank", exact=True).click()
            page.locator(".ranking").wait_for()
            page.get_by_label("Query").fill("bread")
            page.get_by_role("button", name="Rank", exact=True).click()
            tab.wait_for_title("bread")
            assert key not in page.url
            page.reload()
            page.locator(".ranking").wait_for()
            assert tab.expected_refusals() == 1
