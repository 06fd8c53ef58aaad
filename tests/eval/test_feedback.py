"""Dense retrieval before and after feedback: on twelve passages and, with --shared, on Cranfield."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from rerank_eval.feedback import (
    BEFORE,
    FEEDBACK_MEASURES,
    FeedbackExperiment,
    teacher_of_grades,
    write_feedback_report,
)
from rerank_eval.measures import Evaluator, MetricValues, Run
from rerank_eval.statistics import paired_differences, t_test
from rich.console import Console

from rerank.collections import beir, open_collection
from rerank.models.encoder import Encoder
from rerank.readers.qrels import Qrel
from rerank.retrieval.build import build_index
from rerank.retrieval.index import Index
from rerank.types import FeedbackMethod, FirstStage, Query, ScoredDoc
from tests.conftest import PASSAGES

QUERIES = {"1": Query("music", "1"), "2": Query("water", "2")}
#: The relevant passage of each query; dense retrieval does not rank it first.
RELEVANT = {"1": "faiss", "2": "desert"}
QRELS = [Qrel(query_id, doc_id, 1) for query_id, doc_id in RELEVANT.items()]


def ranked(doc_ids: Sequence[str]) -> list[ScoredDoc]:
    return [ScoredDoc(doc_id, -float(rank)) for rank, doc_id in enumerate(doc_ids)]


@pytest.fixture(scope="module")
def experiment(index_folder: Path) -> FeedbackExperiment:
    return FeedbackExperiment(index_folder, QUERIES, Evaluator(FEEDBACK_MEASURES, QRELS))


def relevant_first() -> Run:
    return {query_id: ranked([doc_id, *(p for p in PASSAGES if p != doc_id)]) for query_id, doc_id in RELEVANT.items()}


def test_retriever_follows_a_correct_teacher(experiment: FeedbackExperiment) -> None:
    result = experiment.retrieve_after(teacher_of_grades(QRELS, relevant_first()), FeedbackMethod.WEIGHTED_RANKNET)
    assert result.metrics.mean["nDCG@10"] > experiment.before.mean["nDCG@10"]
    assert result.kept == 0
    assert result.cosine < 1


def test_query_without_a_teacher_is_not_updated(experiment: FeedbackExperiment) -> None:
    result = experiment.retrieve_after({"1": relevant_first()["1"]}, FeedbackMethod.WEIGHTED_RANKNET)
    assert result.kept == 1
    assert result.metrics.per_query["2"] == experiment.before.per_query["2"]


def test_teacher_of_grades_ties_passages_that_are_not_relevant() -> None:
    teacher = teacher_of_grades([Qrel("1", "a", 2), Qrel("1", "b", -1)], {"1": ranked(["b", "c", "a"])})
    assert teacher == {"1": [ScoredDoc("b", 0.0), ScoredDoc("c", 0.0), ScoredDoc("a", 2.0)]}


def test_printed_figures_are_those_of_the_file(experiment: FeedbackExperiment, tmp_path: Path) -> None:
    console = Console(record=True, width=120)
    write_feedback_report(experiment, {"correct": teacher_of_grades(QRELS, relevant_first())}, tmp_path, 0, console)
    written = json.loads((tmp_path / "feedback.json").read_text(encoding="utf-8"))
    assert written.keys() == {BEFORE, "after correct, weighted-ranknet", "after correct, rocchio"}
    changes = written["after correct, weighted-ranknet"]["changes"]
    assert [change["measure"] for change in changes] == [str(measure) for measure in FEEDBACK_MEASURES]
    assert all(change["wins"] + change["losses"] + change["ties"] == len(QUERIES) for change in changes)
    assert f"nDCG@10: {changes[-1]['difference']:+.4f}, p = " in console.export_text()


@pytest.mark.shared
@pytest.mark.timeout(1800)
def test_cranfield_figures(shared: Path, encoder: Encoder, tmp_path: Path) -> None:
    """Dense retrieval after the z-score fusion and after the judgements; before, R@100 is .772 and nDCG@10 .400."""
    folder, built = shared / "cranfield", tmp_path / "cranfield"
    build_index(open_collection(str(folder)), built, encoder)
    queries, qrels = {query.query_id: query for query in beir.queries(folder)}, beir.qrels(folder)
    rankings = Index(built, encoder).search(FirstStage.HYBRID_Z_SCORE, list(queries.values()), 100)
    fusion = dict(zip(queries, rankings, strict=True))
    experiment = FeedbackExperiment(built, queries, Evaluator(FEEDBACK_MEASURES, qrels))
    assert experiment.before.mean["R@100"] == pytest.approx(0.772, abs=0.002)
    after = experiment.retrieve_after(fusion, FeedbackMethod.WEIGHTED_RANKNET).metrics
    assert after.mean["R@100"] >= 0.8
    assert after.mean["nDCG@10"] >= 0.43
    assert p_value(after, experiment.before, "R@100") < 0.01
    assert p_value(after, experiment.before, "nDCG@10") < 0.01
    assert (
        experiment.retrieve_after(teacher_of_grades(qrels, fusion), FeedbackMethod.WEIGHTED_RANKNET).metrics.mean[
            "R@100"
        ]
        >= 0.845
    )


def p_value(after: MetricValues, before: MetricValues, measure: str) -> float:
    return t_test(paired_differences(after.values(measure), before.values(measure)))
