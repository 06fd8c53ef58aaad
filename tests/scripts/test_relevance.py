"""`scripts.reproduce.relevance`: the curve of known lists, and measures against slow ones."""

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from rerank import Reranker
from rerank.config import ServiceConfig
from rerank.config.relevance import RelevanceCurve
from rerank.errors import CollectionError
from rerank.reranking.relevance import probability
from scripts.reproduce.relevance import JudgedList, Source, app, fit_curve, measure
from tests.eval.data import judged_collection, write_qrels, write_requests, write_run

CURVE = RelevanceCurve(intercept=-1.0, slope=3.0)


def of_curve(cosine: float) -> float:
    return probability(CURVE.intercept + CURVE.slope * cosine)


def judged(cosines: Sequence[float], truths: Sequence[bool]) -> JudgedList:
    return JudgedList(np.array(cosines), np.array(truths, dtype=np.bool_))


def drawn_lists(count: int, n: int = 20) -> list[JudgedList]:
    """Lists whose passages are relevant with the probability that the curve says."""
    rng, lists = random.Random(1), []
    for _ in range(count):
        cosines = [rng.uniform(-1, 1) for _ in range(n)]
        lists.append(judged(cosines, [rng.random() < of_curve(cosine) for cosine in cosines]))
    return lists


def test_fit_finds_the_curve_that_drew_the_lists():
    found = fit_curve(drawn_lists(1000))
    assert (found.intercept, found.slope) == pytest.approx((-1.0, 3.0), abs=0.2)


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ([judged([0.5, 0.1], [False, False])], "0 of 2 passages are relevant, and a fit needs relevant and other"),
        ([judged([0.5, 0.1], [True, True])], "2 of 2 passages are relevant"),
        ([judged([0.9, 0.1, 0.8, 0.2], [False, True, False, True])], "with a lower cosine are relevant more often"),
    ],
)
def test_lists_that_no_curve_fits_are_refused(lists, message):
    with pytest.raises(CollectionError, match=message):
        fit_curve(lists)


def test_measures_are_those_of_a_slow_count():
    nothing = judged([], [])
    lists = drawn_lists(12)
    foreign = [judged([-0.9, -0.8], [False] * 2), judged([0.1, 0.9], [False] * 2), nothing, nothing]
    rows = [(of_curve(c), bool(t)) for item in lists for c, t in zip(item.cosines, item.is_relevant, strict=True)]
    good, bad = ([value for value, is_good in rows if is_good is wanted] for wanted in (True, False))
    bins: dict[int, list[float]] = {}
    for value, is_good in rows:
        bins.setdefault(min(9, int(value * 10)), []).append(value - is_good)
    found = measure(CURVE, Source("lists", lists, foreign))
    assert found.ece == pytest.approx(sum(abs(sum(gaps)) for gaps in bins.values()) / len(rows))
    wins = sum((a > b) + 0.5 * (a == b) for a in good for b in bad)
    assert found.auc == pytest.approx(wins / len(good) / len(bad))
    assert found.silent == 0.75
    with_relevant = [item for item in lists if item.is_relevant.any()]
    above = [max(map(of_curve, item.cosines)) > 0.5 for item in with_relevant]
    assert found.answered == pytest.approx(sum(above) / len(above))


TEXTS = {
    "flea": "A flea lives for two to three months.",
    "moon": "The moon orbits the earth in a month.",
    "desert": "Deserts are dry, and nights in them are cold.",
    "violin": "A violin has four strings, which are tuned in fifths.",
}


def lists_of(folder: Path) -> list[str]:
    """Flags of lists; each query is about one of the texts."""
    doc_ids = {query: f"d{number}" for number, query in enumerate(TEXTS)}
    texts = {doc_ids[query]: text for query, text in TEXTS.items()}
    requests = write_requests(folder / "requests.jsonl", dict.fromkeys(TEXTS, texts))
    qrels = write_qrels(folder / "qrels.txt", {query: {doc_id: 2} for query, doc_id in doc_ids.items()})
    return ["--requests", str(requests), "--qrels", str(qrels)]


def test_printed_curve_drops_what_is_irrelevant(tmp_path):
    fitted = CliRunner().invoke(app, [*lists_of(tmp_path), "--rel", "2", "--fit"])
    assert fitted.exit_code == 0, fitted.output
    settings = yaml.safe_load(fitted.output.strip().splitlines()[-1])
    with Reranker(
        ServiceConfig.model_validate({**settings, "models": [{"name": "pe", "ranker": "pe-rank"}]})
    ) as reranker:
        best, *others = reranker.rank("what is a flea", list(TEXTS.values()))
        assert best["corpus_id"] == 0
        assert best["relevance"] > others[0]["relevance"]
        least = (best["relevance"] + others[0]["relevance"]) / 2
        assert reranker.rank("what is a flea", list(TEXTS.values()), min_relevance=least) == [best]


def test_run_and_its_collection_are_lists_too(tmp_path):
    run = write_run(tmp_path / "run.trec", {query: list(TEXTS) for query in TEXTS})
    folder = judged_collection(tmp_path / "four", TEXTS, {q: f"what is {q}" for q in TEXTS}, {q: {q: 1} for q in TEXTS})
    measured = CliRunner().invoke(app, ["--requests", str(run), "--qrels", str(folder)])
    assert measured.exit_code == 0, measured.output
    assert "/run.trec | 4 | present | 0." in measured.output
