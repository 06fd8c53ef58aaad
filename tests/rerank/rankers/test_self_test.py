"""Self-test: passes models of every kind, and fails models with wrong scores."""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from rerank.errors import SelfTestFailed
from rerank.rankers.base import Ranker
from rerank.rankers.first import FirstRanker
from rerank.rankers.pe_rank import PERankRanker
from rerank.rankers.self_test import CPU_TOLERANCE, GOLDEN, check, tolerance, write_golden
from rerank.types import ScoreKind, Window, WindowRanking
from tests.causal_lms import write_causal_lm
from tests.fakes import NumberRanker
from tests.pe_checkpoints import write_published
from tests.small_tokenizers import byte_level, metaspace

SETTINGS = {"ranker": "first", "passage_tokens": 48}


def scorer(score: Callable[[Window, int], Sequence[float]], **info: Any) -> NumberRanker:
    """Scores each window by `score(window, number of windows in the batch)`."""

    def rank(method: str, parts: Any, *_: Any) -> list[WindowRanking] | None:
        return [WindowRanking(tuple(score(part, len(parts)))) for part in parts] if method == "score" else None

    return NumberRanker(instead=rank, **info)


def run(ranker: Ranker, folder: Path | None = None) -> None:
    check(ranker, SETTINGS, folder, CPU_TOLERANCE)


@pytest.mark.parametrize(
    ("architecture", "family"), [("qwen3", byte_level), ("gemma2", byte_level), ("mistral", metaspace)]
)
def test_first_passes(tmp_path, architecture, family):
    checkpoint = write_causal_lm(tmp_path / "lm", architecture, family())
    run(FirstRanker(checkpoint, "first", device="cpu"))


@pytest.mark.parametrize("decoding", ["one_step", "dynamic"])
def test_pe_rank_passes(tmp_path, checkpoint, encoder, decoding):
    folder = checkpoint if decoding == "one_step" else write_published(tmp_path / "published", encoder)
    run(PERankRanker(folder, encoder, "cpu", decoding))  # type: ignore[arg-type]


def test_ranker_that_reads_no_passages_is_not_tested():
    ranker = NumberRanker(reorders=False)
    run(ranker)
    assert ranker.ranked == []


@pytest.mark.parametrize(("largest", "sizes"), [(1, {1}), (2, {1, 2}), (4, {1, 2, 4}), (5, {1, 2, 5})])
def test_no_window_is_larger_than_the_model_reads(largest, sizes):
    ranker = NumberRanker(largest)
    run(ranker)
    assert {len(window.passages) for window in ranker.ranked} == sizes


@pytest.mark.parametrize(
    ("score", "problem"),
    [
        (
            lambda window, batch: [1e-3 * batch] * len(window.passages),
            r"alone and in a batch differ by 0\.002, inf standard deviations .* in float32 explains 0\.0001, or "
            r"0\.0001 deviations; its scores depend on what else is read",
        ),
        (
            lambda window, batch: [math.nan] * len(window.passages),
            r"its scores are not finite: weights with NaN, or too large for the precision \(float32\); train again$",
        ),
        (lambda window, batch: [0.0], r"the ranker returned 1 scores for a window of 2"),
        (lambda window, batch: 1 / 0, r"failed on 7 short passages: ZeroDivisionError"),
    ],
    ids=["batch", "nan", "count", "raises"],
)
def test_wrong_scores_fail(score, problem):
    with pytest.raises(SelfTestFailed, match=f"self-test: .*{problem}"):
        run(scorer(score, precision="float32"))


def test_rounding_may_swap_ranks_in_bfloat16_but_not_in_float32():
    ranker = scorer(
        lambda window, batch: [batch - float(place) for place in range(len(window.passages))], score_kind=ScoreKind.RANK
    )
    check(ranker, SETTINGS, None, tolerance("cuda", "auto"))
    with pytest.raises(SelfTestFailed, match=r"alone and in a batch differ by 2, 1\.6 standard deviations"):
        run(ranker)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> FirstRanker:
    checkpoint = write_causal_lm(tmp_path_factory.mktemp("first") / "lm", "llama", byte_level())
    return FirstRanker(checkpoint, "first", device="cpu")


def change_golden(folder: Path, **changes: object) -> None:
    path = folder / GOLDEN
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | changes), encoding="utf-8")


@pytest.mark.parametrize(("difference", "passes"), [(0.9e-3, True), (2e-3, False)])
def test_golden_scores_are_compared_within_their_tolerance(first, tmp_path, difference, passes):
    write_golden(first, SETTINGS, tmp_path)
    rows = json.loads((tmp_path / GOLDEN).read_text(encoding="utf-8"))["scores"]
    rows[2][4] += difference
    change_golden(tmp_path, scores=rows)
    if passes:
        run(first, tmp_path)
    else:
        with pytest.raises(
            SelfTestFailed,
            match=r"differ from golden\.json by 0\.002, .* explains 0\.001, or .*; restore the checkpoint, or",
        ):
            run(first, tmp_path)


def test_golden_scores_of_other_weights_fail(first, tmp_path):
    write_golden(first, SETTINGS, tmp_path)
    change_golden(tmp_path, model_revision="0" * 64)
    message = rf"belongs to weights 0{{64}}, the checkpoint holds {first.info.model_revision}; restore"
    with pytest.raises(SelfTestFailed, match=message):
        run(first, tmp_path)


def test_golden_scores_of_other_settings_are_not_compared_and_the_log_says_so(first, tmp_path, caplog):
    write_golden(first, SETTINGS | {"passage_tokens": 64}, tmp_path)
    change_golden(tmp_path, scores=[[9.0], [9.0, 9.0], [9.0] * 5])
    with caplog.at_level("INFO"):
        run(first, tmp_path)
    assert "golden.json was written with other settings (passage_tokens); its scores are not compared" in caplog.text


@pytest.mark.parametrize(
    ("device", "precision", "explained_by"),
    [
        ("cpu", "float32", "float32"),
        ("cuda", "float32", "float32"),
        ("cpu", "bfloat16", "bfloat16"),
        ("cuda", "auto", "bfloat16"),
        ("cuda", "float8", "float8"),
    ],
)
def test_rounding_is_that_of_the_precision(device, precision, explained_by):
    assert tolerance(device, precision).precision == explained_by
