"""Tests a model at load: ranks a few small windows alone and in one batch, and compares the scores.

It finds wrong attention masks or positions, scores that are not finite, and weights whose scores differ from those in
`golden.json`, in well under a second. Checks of a single part, such as its tokenizer, belong in that part's
constructor.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from rerank.errors import ConfigError, SelfTestFailed
from rerank.rankers.base import Ranker, rank_windows
from rerank.types import Passage, Prepared, Query, ScoreKind, Window
from rerank.util.files import atomic_file

log = logging.getLogger(__name__)

GOLDEN = "golden.json"
#: Tolerances of log-probabilities in float32 between one batch and another, on a CPU and on CUDA.
CPU_TOLERANCE = 1e-4
CUDA_TOLERANCE = 1e-2
#: bfloat16 has 8 bits of precision: the error of a logit near 20 is 0.06, and kernels depend on the batch's shape.
BFLOAT16_TOLERANCE = 0.25

#: Passages per window: few, because a generating model takes one step per token.
_SIZES = (1, 2, 5)
_QUERY = "how do birds find their way"
#: Texts of different lengths, so that the windows of a batch differ in length.
_TEXTS = (
    "Robins sense the magnetic field of the earth.",
    "Bread rises because yeast makes gas.",
    "Homing pigeons follow roads, rivers and the coast where they know the land below them.",
    "A violin has four strings.",
    "Young starlings that were carried far from their route kept the direction and missed their winter home.",
    "Stars turn around the pole, and buntings learn which part of the sky stands still.",
    "Salt water freezes later than fresh water.",
)

Scores = tuple[tuple[float, ...], ...]


class Golden(BaseModel):
    """Holds the expected scores of the self-test, written together with the checkpoint."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    #: SHA-256 of the weights.
    model_revision: str
    #: Fingerprint of everything else that the scores depend on: settings, template and the windows of the self-test.
    made_with: dict[str, str]
    #: Log-probabilities, one row per window.
    scores: Scores
    #: The largest accepted difference, in float32.
    tolerance: float


def tolerance(device_type: str, precision: str) -> float:
    """Returns the largest difference between two scores of a passage that rounding can explain."""
    if precision == "bfloat16" or (precision == "auto" and device_type != "cpu"):
        return BFLOAT16_TOLERANCE
    return CPU_TOLERANCE if device_type == "cpu" else CUDA_TOLERANCE


def check(ranker: Ranker, settings: Mapping[str, object], folder: Path | None, allowed: float) -> None:
    """Runs the self-test; does nothing for a ranker that reads no passages.

    Args:
        settings: the settings of the ranker that its scores depend on.
        folder: its checkpoint. If its `golden.json` was written with other settings, this is logged and no scores are
            compared with it.
        allowed: the largest accepted difference of scores; see `tolerance`.

    Raises:
        SelfTestFailed: the ranker raised, or its scores are too few, not finite, differ from the golden ones or depend
            on the batch.
    """
    if not ranker.info.reads_passages:
        return
    scores = _scores(ranker, allowed)
    if folder is not None and (path := folder / GOLDEN).is_file():
        _check_golden(_read_golden(path), scores, ranker, settings, allowed)


def write_golden(ranker: Ranker, settings: Mapping[str, object], folder: Path, within: float = 1e-3) -> None:
    """Writes `golden.json` into the checkpoint folder of a ranker that was loaded on the CPU in float32.

    Args:
        ranker: passes the self-test.
        settings: as for `check`.
        within: the largest accepted difference: other processors and library versions round differently.

    Raises:
        ConfigError: the ranker does not compute in float32, or its scores are ranks, which another processor's rounding
            may swap.
        SelfTestFailed: the ranker does not pass the self-test.
    """
    if ranker.info.score_kind is not ScoreKind.WINDOW_LOG_PROB:
        raise ConfigError(
            f"golden scores must be log-probabilities, but {ranker.info.kind} returns "
            f"{ranker.info.score_kind.value} scores"
        )
    if ranker.info.precision != "float32":
        raise ConfigError(
            f"golden scores must be computed in float32, and the ranker computes in {ranker.info.precision}; load it "
            "with precision float32"
        )
    golden = Golden(
        model_revision=ranker.info.model_revision,
        made_with=_fingerprint(ranker, settings),
        scores=_scores(ranker, CPU_TOLERANCE),
        tolerance=within,
    )
    with atomic_file(folder / GOLDEN) as temporary:
        temporary.write_text(golden.model_dump_json(indent=1) + "\n", encoding="utf-8")


def _scores(ranker: Ranker, allowed: float) -> Scores:
    """Returns the scores of each window ranked alone, after comparing them with those in one batch."""
    try:
        windows = _windows(ranker.prepare(Query(_QUERY), _passages()), ranker.info.max_window_size)
        alone = [rank_windows(ranker, [window])[0].scores for window in windows]
        batched = [ranking.scores for ranking in rank_windows(ranker, windows)]
    except Exception as error:
        raise SelfTestFailed(f"self-test: the model failed on {len(_TEXTS)} short passages: {error!r}") from error
    if ranker.info.score_kind is ScoreKind.RANK and allowed >= BFLOAT16_TOLERANCE:
        return tuple(alone)  # ranks: rounding may swap two passages
    if (gap := _max_difference(alone, batched)) > allowed:
        raise SelfTestFailed(
            f"self-test: scores of a window alone and in a batch differ by {gap:.2g}, {allowed:.2g} is allowed; "
            "the checkpoint does not fit this version of torch or transformers"
        )
    return tuple(alone)


def _passages() -> list[Passage]:
    return [Passage(f"self-test-{number}", text) for number, text in enumerate(_TEXTS)]


def _windows(prepared: Prepared, max_window_size: int) -> list[Window]:
    """One window of each size that the model reads, each starting at another passage."""
    sizes = sorted({min(size, max_window_size) for size in _SIZES})
    return [Window(prepared.query, prepared.passages[start : start + size]) for start, size in enumerate(sizes)]


def _max_difference(expected: Sequence[Sequence[float]], found: Sequence[Sequence[float]]) -> float:
    pairs = (pair for rows in zip(expected, found, strict=True) for pair in zip(*rows, strict=True))
    return max(abs(score - other) for score, other in pairs)


def _read_golden(path: Path) -> Golden:
    try:
        return Golden.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise SelfTestFailed(f"self-test: {path} cannot be read: {error}; write it again or remove it") from error


def _check_golden(
    golden: Golden, scores: Scores, ranker: Ranker, settings: Mapping[str, object], allowed: float
) -> None:
    """Compares the scores with the golden ones, if these were written with the same settings."""
    if golden.model_revision != ranker.info.model_revision:
        raise SelfTestFailed(
            f"self-test: {GOLDEN} belongs to weights {golden.model_revision}, the checkpoint holds "
            f"{ranker.info.model_revision}; restore the checkpoint, or write {GOLDEN} again"
        )
    if changed := sorted({key for key, _ in golden.made_with.items() ^ _fingerprint(ranker, settings).items()}):
        log.info(
            "%s: %s was written with other settings (%s); its scores are not compared",
            ranker.info.model_id,
            GOLDEN,
            ", ".join(changed),
        )
        return
    sizes, expected = [len(row) for row in golden.scores], [len(row) for row in scores]
    if sizes != expected:
        raise SelfTestFailed(
            f"self-test: {GOLDEN} holds rows of {sizes} scores, the self-test has rows of {expected}; write it again"
        )
    allowed = max(golden.tolerance, allowed)
    if (gap := _max_difference(golden.scores, scores)) > allowed:
        raise SelfTestFailed(
            f"self-test: scores differ from {GOLDEN} by {gap:.2g}, {allowed:.2g} is allowed; the checkpoint does not "
            "fit this version of torch or transformers"
        )


def _fingerprint(ranker: Ranker, settings: Mapping[str, object]) -> dict[str, str]:
    windows_sha256 = hashlib.sha256("\n".join([_QUERY, *_TEXTS, *map(str, _SIZES)]).encode()).hexdigest()
    return {key: str(value) for key, value in settings.items()} | {
        "template_sha256": ranker.info.template_sha256,
        "windows_sha256": windows_sha256,
    }
