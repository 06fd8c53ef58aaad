"""Dense retrieval before and after feedback, on twelve passages."""

from pathlib import Path
from typing import Any

import pytest
from rerank_eval.commands import eval_beir
from rerank_eval.datasets import open_datasets
from rerank_eval.feedback import DenseSearch, Teacher
from rerank_eval.settings import BeirSettings

from rerank.config import PERankModel
from rerank.rankers.pe_rank import PERankRanker
from rerank.types import FeedbackMethod, FirstStage, ScoreKind
from tests.conftest import PASSAGES
from tests.eval.data import evaluate, judged_collection, refusal
from tests.eval.test_report import rows
from tests.fakes import NumberRanker
from tests.serving import running_service

#: The relevant passage of each query; dense retrieval does not rank query 1's first.
RELEVANT = {"1": "faiss", "2": "desert"}


@pytest.fixture
def collection(beir_folder: Path, tmp_path: Path) -> Path:
    grades = {query_id: {doc_id: 1} for query_id, doc_id in RELEVANT.items()}
    return judged_collection(tmp_path / "twelve", beir_folder / "corpus.jsonl", {"1": "music", "2": "water"}, grades)


def settings_of(collection: Path, index: Path, **given: Any) -> BeirSettings:
    return BeirSettings(collection=[str(collection)], index=[index], out=Path("out"), feedback=True, **given)


@pytest.fixture
def dense(collection: Path, index_folder: Path) -> DenseSearch:
    (dataset,) = open_datasets(settings_of(collection, index_folder))
    return DenseSearch(index_folder, dataset)


def teacher(kind: ScoreKind, *query_ids: str, has_preranker: bool = False) -> Teacher:
    """Ranks the relevant passage of these queries first, as its preranker does, and no passage of the others."""
    rankings: dict[str, tuple[list[str], list[float]]] = {query_id: ([], []) for query_id in RELEVANT}
    for query_id in query_ids:
        doc_ids = sorted(PASSAGES, key=lambda doc_id: doc_id != RELEVANT[query_id])
        rankings[query_id] = doc_ids, [0.9, *(0.1 - 0.001 * place for place in range(len(doc_ids) - 1))]
    of_preranker = {name: scores for name, (_, scores) in rankings.items()} if has_preranker else {}
    return Teacher("t", rankings, kind, of_preranker)


@pytest.mark.parametrize("kind", [ScoreKind.RANK, ScoreKind.POINTWISE, ScoreKind.POINTWISE_PROBABILITY])
def test_retriever_follows_a_correct_teacher_by_every_loss_that_its_scores_allow(dense, collection, index_folder, kind):
    found = dense.after(teacher(kind, "1", "2"), settings_of(collection, index_folder))
    names = ["weighted-ranknet", "weighted-ranknet-first", "kl", "rocchio"]
    names = [name for name in names if (name, kind) != ("kl", ScoreKind.RANK)]
    assert [row.name for row in found] == [f"dense after t, {name}" for name in names]
    assert all((row.cost["kept"], row.cost["cosine"] < 1) == (0, True) for row in found)
    for row in found[:-1]:  # Rocchio takes the six first passages as relevant
        assert row.metrics.mean["nDCG@10"] > dense.measured(dense.vectors).mean["nDCG@10"]


def test_chain_is_measured_where_a_cascade_has_scores_of_its_preranker(dense, collection, index_folder):
    settings = settings_of(collection, index_folder, feedback_loss=[FeedbackMethod.CHAIN])
    assert dense.after(teacher(ScoreKind.RANK, "1", "2"), settings) == []
    (row,) = dense.after(teacher(ScoreKind.RANK, "1", "2", has_preranker=True), settings)
    assert (row.name, row.cost["kept"]) == ("dense after t, chain", 0)
    assert row.metrics.mean["nDCG@10"] > dense.measured(dense.vectors).mean["nDCG@10"]


def test_query_without_a_ranking_keeps_its_vector(dense, collection, index_folder):
    settings = settings_of(collection, index_folder, feedback_loss=[FeedbackMethod.WEIGHTED_RANKNET])
    (row,) = dense.after(teacher(ScoreKind.RANK, "1"), settings)
    assert row.cost["kept"] == 1
    assert row.metrics.per_query["2"] == dense.measured(dense.vectors).per_query["2"]


@pytest.mark.parametrize(
    ("given", "steps", "rate"), [({}, 0, 0.0), ({"feedback_steps": 7}, 7, 0.0), ({"feedback_rate": 0.5}, 0, 0.5)]
)
def test_flags_set_the_update_of_both_searches(given, steps, rate):
    settings = settings_of(Path("c"), Path("i"), **given)
    found = settings.feedback_settings(FeedbackMethod.WEIGHTED_RANKNET)
    assert (found.steps, found.learning_rate) == (steps, rate)
    assert (settings.second_search["steps"], settings.second_search["learning_rate"]) == (steps, rate)
    assert settings_of(Path("c"), Path("i"), feedback_ranking=False).second_search is None
    assert settings_of(Path("c"), Path("i"), first_stage=FirstStage.BM25).second_search is None


def test_command_prints_dense_retrieval_after_every_teacher_beside_the_second_search(
    collection, index_folder, service, tmp_path
):
    given = ["--collection", collection, "--index", index_folder, "--target", service.address, "--first-stage", "dense"]
    out = tmp_path / "out"
    printed = evaluate(eval_beir, out, *given, "--model", "identity", "--model", "pe-rank", "--depth", 3, "--feedback")
    names = list(rows((out / "report.md").read_text(encoding="utf-8"), "Means over"))
    assert names[:4] == ["first stage", "identity", "pe-rank", "pe-rank.feedback"]
    text = (out / "feedback.md").read_text(encoding="utf-8")
    table = rows(text, "Relevance feedback")
    updates = {"dense after identity, rocchio", "dense after pe-rank, kl", "dense after oracle, rocchio"}
    assert updates | {"dense"} < {*table}
    assert table["dense"][:4] == ["1.0000", "–", table["dense"][2], "–"]
    assert text.partition("\n\n")[2].strip() in printed


def test_command_measures_the_chain_of_a_cascade(collection, index_folder, encoder, checkpoint, index, tmp_path):
    rankers = {"number": NumberRanker(), "pe-rank": PERankRanker(checkpoint, encoder, "cpu")}
    settings = [{"strategy": "cascade", "preranker": "pe-rank"}, {}]
    named = zip(rankers, settings, strict=True)
    models = tuple(PERankModel(name=name, ranker="pe-rank", window_size=3, **given) for name, given in named)
    given = ["--collection", collection, "--index", index_folder, "--first-stage", "dense", "--depth", 3, "--feedback"]
    alone = [*given, "--model", "pe-rank", "--no-feedback-ranking", "--feedback-loss", "chain"]
    with running_service(rankers, index, models=models) as served:
        both = ["--target", served.address, "--model", "number", "--model", "pe-rank"]
        evaluate(eval_beir, tmp_path / "out", *given, *both)
        refused = refusal(eval_beir, tmp_path / "alone", *alone, "--target", served.address)
    table = rows((tmp_path / "out" / "feedback.md").read_text(encoding="utf-8"), "Relevance feedback")
    assert "dense after number, chain" in table
    assert "dense after pe-rank, chain" not in table
    assert "no system has the scores that --feedback-loss chain reads" in refused


def test_first_stage_without_a_query_vector_has_no_second_search_and_the_report_says_so(
    collection, index_folder, service, tmp_path
):
    given = ["--collection", collection, "--index", index_folder, "--target", service.address, "--model", "number"]
    note = "bm25 has no query vector to update, so there is no second search."
    assert note in evaluate(eval_beir, tmp_path / "out", *given, "--first-stage", "bm25", "--depth", 3, "--feedback")
    assert not (tmp_path / "out" / "number.feedback").exists()
