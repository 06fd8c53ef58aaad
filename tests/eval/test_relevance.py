"""`eval-relevance`: curves of known lists, and measures against slow ones."""

from __future__ import annotations

import math
import random
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from rerank_eval.relevance import app
from rerank_eval.relevance_fit import JudgedList, JudgedPassage, fit_curve, measure
from typer.testing import CliRunner

from rerank import Reranker
from rerank.checkpoints import bundled
from rerank.checkpoints.manifest import read_manifest
from rerank.checkpoints.relevance import RelevanceCurve
from rerank.errors import CollectionError, ConfigError
from tests.eval.data import write_qrels, write_requests

CURVE = RelevanceCurve(signal="cosine", intercept=-1.0, slope=3.0, encoder_sha256="e")


def judged(values: Sequence[float], truths: Sequence[bool]) -> JudgedList:
    return [JudgedPassage({"cosine": value}, truth) for value, truth in zip(values, truths, strict=True)]


def drawn_lists(curve: RelevanceCurve, count: int, n: int = 20) -> list[JudgedList]:
    """Lists in which passages are relevant with the probability that the curve says."""
    rng, lists = random.Random(1), []
    for _ in range(count):
        values = [rng.uniform(-1, 1) for _ in range(n)]
        odds = [curve.intercept + curve.slope * value for value in values]
        lists.append(judged(values, [rng.random() < 1 / (1 + math.exp(-each)) for each in odds]))
    return lists


def test_fit_finds_the_curve_that_drew_the_lists() -> None:
    found = fit_curve(drawn_lists(CURVE, 1000), "cosine", "e")
    assert (found.signal, found.encoder_sha256) == ("cosine", "e")
    assert (found.intercept, found.slope) == pytest.approx((-1.0, 3.0), abs=0.2)


def test_fit_reads_only_passages_of_which_the_signal_is_known() -> None:
    lists = drawn_lists(CURVE, 20)
    others = [[JudgedPassage({"sparse": 9.0}, False)] for _ in range(50)]
    assert fit_curve([*lists, *others], "cosine", "e") == fit_curve(lists, "cosine", "e")


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
        fit_curve(lists, "cosine", "")


def test_measures_are_those_of_a_slow_count() -> None:
    lists, foreign = drawn_lists(CURVE, 12), [judged([-0.9, -0.8], [False] * 2), judged([0.1, 0.9], [False] * 2)]
    rows = [(CURVE.probability(p.signals["cosine"]), p.is_relevant) for each in lists for p in each]
    good, bad = ([value for value, is_good in rows if is_good is wanted] for wanted in (True, False))
    bins: dict[int, list[float]] = {}
    for value, is_good in rows:
        bins.setdefault(min(9, int(value * 10)), []).append(value - is_good)
    threshold = sorted(good)[int(0.05 * (len(good) - 1))]
    found = measure((CURVE,), lists, foreign)
    assert found.ece == pytest.approx(sum(abs(sum(each)) for each in bins.values()) / len(rows))
    wins = sum((a > b) + 0.5 * (a == b) for a in good for b in bad)
    assert found.auc == pytest.approx(wins / len(good) / len(bad))
    assert found.dropped == pytest.approx(sum(value < threshold for value in bad) / len(bad))
    assert found.silent == 0.5
    with_relevant = [each for each in lists if any(p.is_relevant for p in each)]
    above = [max(CURVE.probability(p.signals["cosine"]) for p in each) > 0.5 for each in with_relevant]
    assert found.answered == pytest.approx(sum(above) / len(above))


def test_well_drawn_relevances_are_calibrated() -> None:
    assert measure((CURVE,), drawn_lists(CURVE, 1000), ()).ece < 0.03


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
def test_command_stores_a_curve_with_which_the_checkpoint_drops_what_is_irrelevant(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    shutil.copytree(bundled.PE_RANK, mine)
    fitted = CliRunner().invoke(app, [str(mine), *lists_of(tmp_path), "--relevant-from", "2", "--fit", "--store"])
    assert fitted.exit_code == 0, fitted.output
    manifest = read_manifest(mine)
    assert manifest is not None
    assert manifest.relevance is not None
    (curve,) = manifest.relevance
    assert curve.encoder_sha256
    printed = yaml.safe_load(fitted.output[fitted.output.index("relevance:") :].partition("\n\n")[0])
    assert [RelevanceCurve.model_validate(each) for each in printed["relevance"]] == [curve]
    assert CliRunner().invoke(app, [str(mine), *lists_of(tmp_path)]).exit_code == 0
    with Reranker(mine) as reranker:
        best, *others = reranker.rank("what is a flea", list(TEXTS.values()))
        assert best["corpus_id"] == 0
        assert best["relevance"] > others[0]["relevance"]
        least = (best["relevance"] + others[0]["relevance"]) / 2
        assert reranker.rank("what is a flea", list(TEXTS.values()), min_relevance=least) == [best]
        assert reranker.rank("what is a flea", ["Nothing."], min_relevance=1.0) == []


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "0 sources of lists and 0 --relevant-from; give at least one --requests or --index"),
        (["--store"], "--store is given without --fit; give both"),
        (["--requests", "r.jsonl"], "1 sources and 0 --qrels; give one for each"),
        (
            ["--requests", "r", "--qrels", "q", "--relevant-from", "1", "--relevant-from", "2"],
            "1 sources of lists and 2",
        ),
    ],
)
def test_sources_without_judgements_are_refused(flags: list[str], message: str) -> None:
    refused = CliRunner().invoke(app, ["pe-rank", *flags])
    assert isinstance(refused.exception, ConfigError)
    assert message in str(refused.exception)
