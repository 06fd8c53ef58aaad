"""Tests a model when it is loaded: ranks a few small windows alone and in one batch, and compares the scores.

FIRST's and PE-Rank's scores are also compared with those of the model as transformers loads and runs it, before the
ranker changes the model for speed. This finds wrong attention masks, positions and heads, windows that are mixed up,
scores that are not finite, and scores that differ from `golden.json`, in about a second. Checks of a single part of a
ranker, such as its tokenizer, belong in that part's constructor.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, ValidationError

from rerank.errors import ConfigError, RankerFailure, SelfTestFailed, is_rust_panic
from rerank.models.memory import translate_out_of_memory
from rerank.rankers.base import Ranker, rank_windows
from rerank.types import Passage, Query, ScoreKind, Window
from rerank.util.files import atomic_file

log = logging.getLogger(__name__)

#: File of the expected scores in the folder of a checkpoint.
GOLDEN = "golden.json"
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

#: Beginning of an error message: what differs.
_BATCH = "scores of a window alone and in a batch differ by"
#: End of an error message if scores depend on the batch: what to do.
_ALONE = "its scores depend on what else is read, so use another checkpoint"
#: End of an error message if scores differ from those of transformers.
_PLAIN = "the service computes this model wrongly: report it with the checkpoint's config.json"
#: End of an error message if scores differ from the golden ones.
_OTHER_WEIGHTS = f"restore the checkpoint, or write {GOLDEN} again"

#: Rows of scores: one for each window of the self-test, or for each choice in it.
Scores: TypeAlias = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Tolerance:
    """The largest differences between two scores of a window that rounding can explain. One of the two bounds suffices.

    Attributes:
        precision: number format in which the scores are computed.
        absolute: the largest difference of a score.
        deviations: the largest root mean square of the differences in a window, in standard deviations of the scores.
    """

    precision: Literal["float32", "bfloat16", "float8"]
    absolute: float
    deviations: float


CPU_TOLERANCE = Tolerance("float32", absolute=1e-4, deviations=1e-4)
CUDA_TOLERANCE = Tolerance("float32", absolute=1e-2, deviations=1e-2)
#: bfloat16 rounds a number by up to 2^-9 of its size, and each layer adds two rounded numbers to its input: after 32
#: layers that is 2^-9 * sqrt(64) = .016 of a logit's size, before layers amplify it. Random models of 512 to 1,024
#: units and 8 to 32 layers differ by .02 to .15 standard deviations; in nats, the difference grows with the logits.
#: Random models of 4,096 units and 32 layers, which amplify rounding as no trained ones do, differ on an H100 by .54
#: (FIRST) and .52 (PE-Rank). Scores of a wrong window, position or head are unrelated to the right ones, and differ by
#: sqrt(2) = 1.4 deviations; the smallest fault that was planted on purpose by .68.
#: Scores that are hardly apart have no order that bfloat16 could keep: a logit above 16 is a multiple of .125.
BFLOAT16_TOLERANCE = Tolerance("bfloat16", absolute=0.1, deviations=0.65)
#: Scores of a window alone, in a batch and by transformers, all with weights in float8, differ by .1 to .2 deviations.
FLOAT8_TOLERANCE = replace(BFLOAT16_TOLERANCE, precision="float8")


class Golden(BaseModel):
    """The expected scores of the self-test, which are saved with the checkpoint."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    #: SHA-256 of the weights.
    model_revision: str
    #: Fingerprint of everything else that the scores depend on: settings, template and the windows of the self-test.
    made_with: dict[str, str]
    #: Log-probabilities, one row per window.
    scores: Scores
    #: The largest accepted difference, in float32.
    tolerance: float


def tolerance(device_type: str, precision: str) -> Tolerance:
    """Returns the differences between two scores of a passage that rounding can explain."""
    if precision == "float8":
        return FLOAT8_TOLERANCE
    if precision == "bfloat16" or (precision == "auto" and device_type != "cpu"):
        return BFLOAT16_TOLERANCE
    return CPU_TOLERANCE if device_type == "cpu" else CUDA_TOLERANCE


def check(ranker: Ranker, settings: Mapping[str, object], folder: Path | None, allowed: Tolerance) -> None:
    """Runs the self-test; does nothing for a ranker that reads no passages.

    Args:
        settings: the settings of the ranker that its scores depend on.
        folder: folder of the checkpoint; None: there is none. If its `golden.json` was written with other settings, the
            scores are not compared with it, and the log says so.
        allowed: the accepted differences of scores; see `tolerance`.

    Raises:
        SelfTestFailed: the ranker raised, or its scores are too few, are not finite, depend on the batch, or differ
            from the scores of transformers or the golden scores.
    """
    if not ranker.info.reorders:
        return
    scores = _scores(ranker, allowed)
    if folder is not None and (path := folder / GOLDEN).is_file():
        _check_golden(_read_golden(path), scores, ranker, settings, allowed)


def write_golden(ranker: Ranker, settings: Mapping[str, object], folder: Path) -> None:
    """Writes `golden.json` into the checkpoint folder of a ranker that was loaded on the CPU in float32.

    Args:
        ranker: a ranker that passes the self-test.
        settings: as for `check`.

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
        tolerance=1e-3,  # other processors and library versions round differently
    )
    with atomic_file(folder / GOLDEN) as temporary:
        temporary.write_text(golden.model_dump_json(indent=1) + "\n", encoding="utf-8")


def windows_of(ranker: Ranker, max_window_size: int) -> list[Window]:
    """Returns the windows of the self-test: one of each size that the model reads, each with other passages."""
    passages = [Passage(f"self-test-{number}", text) for number, text in enumerate(_TEXTS)]
    prepared = ranker.prepare(Query(_QUERY), passages)
    sizes = sorted({min(size, max_window_size) for size in _SIZES})
    return [Window(prepared.query, prepared.passages[start : start + size]) for start, size in enumerate(sizes)]


def scores_alone(ranker: Ranker, max_window_size: int) -> Scores:
    """Returns the scores of the windows of the self-test, each ranked alone. Raises: SelfTestFailed."""
    with failing_on_windows():
        windows = windows_of(ranker, max_window_size)
        return tuple(rank_windows(ranker, [window])[0].scores for window in windows)


@contextmanager
def failing_on_windows() -> Iterator[None]:
    """Raises SelfTestFailed for any error that a model raises in the block."""
    try:
        with translate_out_of_memory():
            yield
    except RankerFailure as error:
        raise SelfTestFailed(f"self-test: {error}") from error
    except MemoryError as error:
        raise SelfTestFailed(
            f"self-test: {len(_TEXTS)} short passages exceed the memory of the device: {error}; take a smaller model, "
            "or another device"
        ) from error
    except BaseException as error:
        if not (isinstance(error, Exception) or is_rust_panic(error)):
            raise
        raise SelfTestFailed(f"self-test: the model failed on {len(_TEXTS)} short passages: {error!r}") from error


def _scores(ranker: Ranker, allowed: Tolerance) -> Scores:
    """Returns the scores of each window ranked alone, if those in a batch and by transformers agree with them.

    Raises:
        SelfTestFailed: they differ by more than rounding explains.
    """
    alone = scores_alone(ranker, ranker.info.max_window_size)
    with failing_on_windows():
        windows = windows_of(ranker, ranker.info.max_window_size)
        batched = tuple(ranking.scores for ranking in rank_windows(ranker, windows))
        choices = _choice_scores(ranker, windows)
    if (
        ranker.info.score_kind is not ScoreKind.RANK or allowed.precision == "float32"
    ):  # else rounding may swap two passages
        _check_equal(_BATCH, _ALONE, alone, batched, allowed)
    if choices is not None:
        _check_equal(_BATCH, _ALONE, *choices, allowed)
    if ranker.reference is not None:
        found = alone if choices is None else choices[0]
        _check_equal("scores differ from transformers' scores by", _PLAIN, ranker.reference, found, allowed)
    return alone


def _choice_scores(ranker: Ranker, windows: Sequence[Window]) -> tuple[Scores, Scores] | None:
    """Returns the scores of choices in the windows alone and in one batch; None if the ranker makes no choices."""
    encoded = [ranker.encode(window) for window in windows]
    if ranker.info.score_kind is not ScoreKind.RANK or (batched := ranker.choice_scores(encoded)) is None:
        return None
    alone = chain.from_iterable(chain.from_iterable(ranker.choice_scores([window]) or ()) for window in encoded)
    return tuple(alone), tuple(chain.from_iterable(batched))


def _check_equal(problem: str, remedy: str, expected: Scores, found: Scores, allowed: Tolerance) -> None:
    """Compares scores.

    Args:
        problem: the beginning of the message: what differs.
        remedy: the end of the message: what to do.

    Raises:
        SelfTestFailed: rounding does not explain the difference of the scores.
    """
    gaps = [[abs(x - y) for x, y in zip(*rows, strict=True)] for rows in zip(expected, found, strict=True)]
    gap = max((gap for row in gaps for gap in row), default=0.0)
    deviation = _root_mean_square([score - math.fsum(row) / len(row) for row in expected for score in row if row[1:]])
    deviations = max(map(_root_mean_square, gaps)) / deviation if deviation else math.inf
    if gap > allowed.absolute and deviations > allowed.deviations:
        first = "" if allowed.precision == "float32" else "try precision: float32, and if that fails, too: "
        raise SelfTestFailed(
            f"self-test: {problem} {gap:.2g}, {deviations:.2g} standard deviations of a window's scores; rounding in "
            f"{allowed.precision} explains {allowed.absolute:.2g}, or {allowed.deviations:.2g} deviations; "
            f"{first}{remedy}"
        )


def _root_mean_square(numbers: Sequence[float]) -> float:
    return math.sqrt(math.fsum(number**2 for number in numbers) / len(numbers)) if numbers else 0.0


def _read_golden(path: Path) -> Golden:
    try:
        return Golden.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise SelfTestFailed(f"self-test: {path} cannot be read: {error}; write it again or remove it") from error


def _check_golden(
    golden: Golden, scores: Scores, ranker: Ranker, settings: Mapping[str, object], allowed: Tolerance
) -> None:
    """Compares the scores with the golden scores, if these were written with the same settings.

    Raises:
        SelfTestFailed: the golden scores belong to other weights, are of other windows, or differ too much.
    """
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
    allowed = replace(allowed, absolute=max(golden.tolerance, allowed.absolute))
    _check_equal(f"scores differ from {GOLDEN} by", _OTHER_WEIGHTS, golden.scores, scores, allowed)


def _fingerprint(ranker: Ranker, settings: Mapping[str, object]) -> dict[str, str]:
    windows_sha256 = hashlib.sha256("\n".join([_QUERY, *_TEXTS, *map(str, _SIZES)]).encode()).hexdigest()
    return {key: str(value) for key, value in settings.items()} | {
        "template_sha256": ranker.info.template_sha256,
        "windows_sha256": windows_sha256,
    }
