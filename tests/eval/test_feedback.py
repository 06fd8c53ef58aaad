"""The retriever before and after feedback: small, and (with --shared) on Cranfield."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from ir_measures import Qrel
from rerank_eval.data import read_beir_qrels, read_beir_queries
from rerank_eval.experiment import Judge
from rerank_eval.feedback import BEFORE, MEASURES, FeedbackTrial, grades, publish_feedback
from rerank_eval.measures import Report, Run
from rerank_eval.statistics import paired_differences, t_test
from rich.console import Console

from rerank.collections import open_collection
from rerank.models.encoder import Encoder
from rerank.retrieval.index import Index, build_index
from rerank.retrieval.query_update import FeedbackMethod
from rerank.types import FirstStage, Query, ScoredDoc
from tests.conftest import PASSAGES

QUERIES = {"1": Query("music", "1"), "2": Query("water", "2")}
#: What the encoder does not put first.
WANTED = {"1": "faiss", "2": "desert"}
QRELS = [Qrel(query_id, doc_id, 1) for query_id, doc_id in WANTED.items()]


def ranked(doc_ids: Sequence[str]) -> list[ScoredDoc]:
    return [ScoredDoc(doc_id, -float(rank)) for rank, doc_id in enumerate(doc_ids)]


@pytest.fixture(scope="module")
def trial(index_folder: Path) -> FeedbackTrial:
    return FeedbackTrial(index_folder, QUERIES, Judge(MEASURES, QRELS))


def wanted_first() -> Run:
    return {query_id: ranked([doc_id, *(p for p in PASSAGES if p != doc_id)]) for query_id, doc_id in WANTED.items()}


def test_retriever_follows_a_teacher_that_knows(trial: FeedbackTrial) -> None:
    followed = trial.follow(grades(QRELS, wanted_first()), FeedbackMethod.WEIGHTED_RANKNET)
    assert followed.report.mean["nDCG@10"] > trial.before.mean["nDCG@10"]
    assert followed.unmoved == 0
    assert followed.cosine < 1


def test_query_without_a_teacher_stays_as_it_was(trial: FeedbackTrial) -> None:
    followed = trial.follow({"1": wanted_first()["1"]}, FeedbackMethod.WEIGHTED_RANKNET)
    assert followed.unmoved == 1
    assert followed.report.per_query["2"] == trial.before.per_query["2"]


def test_grades_keep_what_was_found_and_tie_what_is_not_relevant() -> None:
    taught = grades([Qrel("1", "a", 2), Qrel("1", "b", -1)], {"1": ranked(["b", "c", "a"])})
    assert taught == {"1": [ScoredDoc("b", 0.0), ScoredDoc("c", 0.0), ScoredDoc("a", 2.0)]}


def test_what_is_printed_is_what_is_written(trial: FeedbackTrial, tmp_path: Path) -> None:
    console = Console(record=True, width=120)
    publish_feedback(trial, {"knowing": grades(QRELS, wanted_first())}, tmp_path, 0, console)
    written = json.loads((tmp_path / "feedback.json").read_text(encoding="utf-8"))
    assert written.keys() == {BEFORE, "after knowing, weighted-ranknet", "after knowing, rocchio"}
    changes = written["after knowing, weighted-ranknet"]["changes"]
    assert [change["measure"] for change in changes] == [str(measure) for measure in MEASURES]
    assert all(change["wins"] + change["losses"] + change["ties"] == len(QUERIES) for change in changes)
    assert f"nDCG@10: {changes[-1]['difference']:+.4f}, p = " in console.export_text()


@pytest.mark.shared
@pytest.mark.timeout(1800)
def test_cranfield_figures(shared: Path, encoder: Encoder, tmp_path: Path) -> None:
    """Dense retrieval after the z-score fusion and after the judgements: R@100 and nDCG@10 against .772 and .400."""
    folder, built = shared / "cranfield", tmp_path / "cranfield"
    build_index(open_collection(str(folder)), built, encoder, hnsw=False, report=lambda *_: None)
    queries, judged = {query.query_id: query for query in read_beir_queries(folder)}, read_beir_qrels(folder)
    found = Index(built, encoder).retrievers[FirstStage.HYBRID_Z_SCORE].search(list(queries.values()), 100)
    fusion = dict(zip(queries, found, strict=True))
    trial = FeedbackTrial(built, queries, Judge(MEASURES, judged))
    assert trial.before.mean["R@100"] == pytest.approx(0.772, abs=0.002)
    after = trial.follow(fusion, FeedbackMethod.WEIGHTED_RANKNET).report
    assert after.mean["R@100"] >= 0.8
    assert after.mean["nDCG@10"] >= 0.43
    assert p_value(after, trial.before, "R@100") < 0.01
    assert p_value(after, trial.before, "nDCG@10") < 0.01
    assert trial.follow(grades(judged, fusion), FeedbackMethod.WEIGHTED_RANKNET).report.mean["R@100"] >= 0.845


def p_value(after: Report, before: Report, measure: str) -> float:
    return t_test(paired_differences(after.values(measure), before.values(measure)))
