"""The queries whose ranking changed most, with the rankings before and after."""

from __future__ import annotations

from rerank_eval.cases import CASES, CaseFinder, RankedDoc
from rerank_eval.measures import BEIR, Evaluator, Run
from rerank_eval.results import SystemResult
from rerank_eval.trace import RankedList, Response

from rerank.readers.qrels import Qrel
from rerank.types import Query, ScoredDoc

TEXTS = {"a": "text of a", "b": "text of b"}


def ranked(*doc_ids: str) -> list[ScoredDoc]:
    return [ScoredDoc(doc_id, -float(rank)) for rank, doc_id in enumerate(doc_ids)]


def finder(first_stage: Run, qrels: list[Qrel]) -> CaseFinder:
    return CaseFinder(
        Evaluator(BEIR, qrels),
        first_stage,
        {query_id: Query(f"what is {query_id}", query_id) for query_id in first_stage},
        find_texts,
    )


def find_texts(_: str, doc_ids: object) -> dict[str, str]:
    return {doc_id: TEXTS[doc_id] for doc_id in TEXTS if doc_id in doc_ids}  # type: ignore[operator]


def test_gains_come_before_losses_and_unchanged_queries_are_left_out() -> None:
    qrels = [Qrel(query_id, "a", 1) for query_id in ("up", "down", "same")]
    found = finder({"up": ranked("b", "a"), "down": ranked("a", "b"), "same": ranked("a", "b")}, qrels)
    run = {"up": ranked("a", "b"), "down": ranked("b", "a"), "same": ranked("a", "b"), "unjudged": ranked("a")}
    gain, loss = found.find(run, Evaluator(BEIR, qrels).evaluate(run))
    assert (gain.query_id, gain.query, loss.query_id) == ("up", "what is up", "down")
    assert gain.difference == -loss.difference > 0
    assert gain.before == [RankedDoc("b", 1, None, "text of b"), RankedDoc("a", 2, 1, "text of a")]
    assert [doc.doc_id for doc in gain.after] == ["a", "b"]
    assert [doc.first_stage_rank for doc in gain.after] == [2, 1]


def test_largest_changes_are_kept() -> None:
    ids = [f"q{number}" for number in range(CASES + 3)]
    qrels = [Qrel(query_id, "a", 1) for query_id in ids]
    places = {query_id: ranked(*(f"x{n}" for n in range(rank)), "a") for rank, query_id in enumerate(ids, start=1)}
    run = {query_id: ranked("a") for query_id in ids}
    cases = finder(places, qrels).find(run, Evaluator(BEIR, qrels).evaluate(run))
    assert [case.query_id for case in cases] == ids[: -CASES - 1 : -1]


def test_passage_that_the_first_stage_did_not_find_has_no_rank() -> None:
    qrels = [Qrel("q", "new", 1)]
    run = {"q": ranked("new", "a")}
    (case,) = finder({"q": ranked("a")}, qrels).find(run, Evaluator(BEIR, qrels).evaluate(run))
    assert case.after[0] == RankedDoc("new", None, 1, "")


def test_system_that_changes_nothing_has_no_cases() -> None:
    qrels = [Qrel("q", "a", 1)]
    same, metrics = ranked("a"), Evaluator(BEIR, qrels).evaluate({"q": ranked("a")})
    response = Response("q", 1.0, 1.0, RankedList(("a",), (1.0,), (0,), {}))
    assert finder({"q": same}, qrels).by_system([SystemResult("s", metrics)], {"s": [response]}) == {}
