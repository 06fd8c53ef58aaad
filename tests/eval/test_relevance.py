"""`eval-relevance`: curves of known lists, and measures against slow ones."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from rerank_eval.commands import eval_relevance
from rerank_eval.relevance_fit import JudgedList, JudgedPassage, fit_curve, measure
from typer.testing import CliRunner

from rerank import Reranker
from rerank.checkpoints.relevance import RelevanceCurve
from rerank.config import load_config
from rerank.errors import CollectionError
from tests.eval.data import judged_collection, write_qrels, write_requests, write_run

CURVE = RelevanceCurve(intercept=-1.0, slopes={"cosine": 3.0}, encoders={"cosine": "e"})


def judged(values: Sequence[float], truths: Sequence[bool]) -> JudgedList:
    return [JudgedPassage({"cosine": value}, truth) for value, truth in zip(values, truths, strict=True)]


def drawn_lists(curve: RelevanceCurve, count: int, n: int = 20) -> list[JudgedList]:
    """Lists in which passages are relevant with the probability that the curve says."""
    rng, lists = random.Random(1), []
    for _ in range(count):
        values = [rng.uniform(-1, 1) for _ in range(n)]
        lists.append(judged(values, [rng.random() < curve.probability({"cosine": value}) for value in values]))
    return lists


def test_fit_finds_the_curve_that_drew_the_lists() -> None:
    found = fit_curve(drawn_lists(CURVE, 1000), ("cosine",), {"cosine": "e", "sparse": "s"})
    assert found is not None
    assert found.encoders == {"cosine": "e"}
    assert (found.intercept, found.slopes["cosine"]) == pytest.approx((-1.0, 3.0), abs=0.2)


def test_fit_of_two_signals_finds_the_curve_that_drew_the_lists() -> None:
    curve, rng, lists = RelevanceCurve(intercept=-1.0, slopes={"cosine": 3.0, "sparse": 0.5}), random.Random(2), []
    for _ in range(1000):
        given = [{"cosine": rng.uniform(-1, 1), "sparse": rng.uniform(0, 6)} for _ in range(20)]
        lists.append([JudgedPassage(signals, rng.random() < curve.probability(signals)) for signals in given])
    found = fit_curve(lists, ("cosine", "sparse"), {})
    assert found is not None
    assert found.slopes == pytest.approx(curve.slopes, abs=0.2)


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ([judged([0.5, 0.1], [False, False])], "0 of 2 passages are relevant, and a fit needs relevant and other"),
        ([judged([0.5, 0.1], [True, True])], "2 of 2 passages are relevant"),
        (
            [judged([0.9, 0.1, 0.8, 0.2], [False, True, False, True])],
            "passages with a lower cosine are relevant more often",
        ),
    ],
)
def test_lists_that_no_curve_fits_are_refused(lists: Sequence[JudgedList], message: str) -> None:
    with pytest.raises(CollectionError, match=message):
        fit_curve(lists, ("cosine",), {})


def test_measures_are_those_of_a_slow_count() -> None:
    lists, foreign = drawn_lists(CURVE, 12), [judged([-0.9, -0.8], [False] * 2), judged([0.1, 0.9], [False] * 2)]
    rows = [(CURVE.probability(p.signals), p.is_relevant) for item in lists for p in item]
    good, bad = ([value for value, is_good in rows if is_good is wanted] for wanted in (True, False))
    bins: dict[int, list[float]] = {}
    for value, is_good in rows:
        bins.setdefault(min(9, int(value * 10)), []).append(value - is_good)
    found = measure((CURVE,), lists, foreign)
    assert found.ece == pytest.approx(sum(abs(sum(gaps)) for gaps in bins.values()) / len(rows))
    wins = sum((a > b) + 0.5 * (a == b) for a in good for b in bad)
    assert found.auc == pytest.approx(wins / len(good) / len(bad))
    assert found.silent == 0.5
    with_relevant = [item for item in lists if any(p.is_relevant for p in item)]
    above = [max(CURVE.probability(p.signals) for p in item) > 0.5 for item in with_relevant]
    assert found.answered == pytest.approx(sum(above) / len(above))


TEXTS = {
    "flea": "A flea lives for two to three months.",
    "moon": "The moon orbits the earth in a month.",
    "desert": "Deserts are dry, and nights in them are cold.",
    "violin": "A violin has four strings, which are tuned in fifths.",
}


def lists_of(folder: Path) -> list[str]:
    """Flags of lists in which each query is about one of the texts."""
    doc_ids = {query: f"d{number}" for number, query in enumerate(TEXTS)}
    texts = {doc_ids[query]: text for query, text in TEXTS.items()}
    requests = write_requests(folder / "requests.jsonl", dict.fromkeys(TEXTS, texts))
    qrels = write_qrels(folder / "qrels.txt", {query: {doc_id: 2} for query, doc_id in doc_ids.items()})
    return ["--requests", str(requests), "--qrels", str(qrels)]


@pytest.mark.slow
def test_curve_that_the_command_prints_drops_what_is_irrelevant(tmp_path: Path) -> None:
    fitted = CliRunner().invoke(eval_relevance.args[0], ["pe-rank", *lists_of(tmp_path), "--rel", "2", "--fit"])
    assert fitted.exit_code == 0, fitted.output
    printed = fitted.output[fitted.output.index("relevance:") :].partition("\n\n")[0]
    (curve,) = [RelevanceCurve.model_validate(curve) for curve in yaml.safe_load(printed)["relevance"]]
    assert curve.encoders
    config = tmp_path / "service.yaml"
    entry = "".join(f"    {line}\n" for line in printed.splitlines())
    config.write_text(f"models:\n  - name: mine\n    ranker: pe-rank\n{entry}", encoding="utf-8")
    measured = CliRunner().invoke(eval_relevance.args[0], ["mine", "--config", str(config), *lists_of(tmp_path)])
    assert measured.exit_code == 0, measured.output
    with Reranker(load_config(config)) as reranker:
        best, *others = reranker.rank("what is a flea", list(TEXTS.values()))
        assert best["corpus_id"] == 0
        assert best["relevance"] > others[0]["relevance"]
        least = (best["relevance"] + others[0]["relevance"]) / 2
        assert reranker.rank("what is a flea", list(TEXTS.values()), min_relevance=least) == [best]
        assert reranker.rank("what is a flea", ["Nothing."], min_relevance=1.0) == []


@pytest.mark.slow
def test_run_and_its_collection_are_lists_too(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run.trec", {query: list(TEXTS) for query in TEXTS})
    folder = judged_collection(tmp_path / "four", TEXTS, {q: f"what is {q}" for q in TEXTS}, {q: {q: 1} for q in TEXTS})
    measured = CliRunner().invoke(eval_relevance.args[0], ["pe-rank", "--requests", str(run), "--qrels", str(folder)])
    assert measured.exit_code == 0, measured.output
    assert "/run.trec | 4 |" in measured.output
