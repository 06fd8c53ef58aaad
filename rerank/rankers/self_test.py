"""What a model must pass when it is loaded: windows of a few sizes, ranked alone and in one batch.

A mask, padding or positions that are wrong in one of the two show here in well under a second, and so do scores that
are no numbers, and weights that do not give what they gave when `golden.json` was written. What a part can check of
itself, such as one tokenizer path against another, belongs in that part's constructor.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from rerank.config import Precision
from rerank.errors import ConfigError, SelfTestFailed
from rerank.rankers.base import Ranker, checked
from rerank.types import Passage, Prepared, Query, ScoreKind, Window

log = logging.getLogger(__name__)

GOLDEN = "golden.json"
#: Log-probabilities in float32 agree to this whatever they are batched with, on a CPU and on CUDA.
CPU_TOLERANCE = 1e-4
CUDA_TOLERANCE = 1e-2
#: bfloat16 has 8 bits of precision: logits near 20 are off by 0.06 each, and kernels change with the batch's shape.
BFLOAT16_TOLERANCE = 0.25

#: Passages in each window: few, because a model that generates takes a step a token.
_SIZES = (1, 2, 5)
_QUERY = "how do birds find their way"
#: Of different lengths, so that a batch is padded.
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
    """The scores that a checkpoint gave when it was made: `golden.json`, beside the weights."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    #: SHA-256 of the weights.
    model_revision: str
    #: What else the scores depend on: settings and template of the ranker, and the windows of the self-test.
    made_with: dict[str, str]
    #: Log-probabilities, one row a window.
    scores: Scores
    #: The largest difference that passes, in float32.
    tolerance: float


def tolerance(device_type: str, precision: Precision) -> float:
    """The largest difference between two scores of a passage that rounding explains."""
    if precision == "bfloat16" or (precision == "auto" and device_type != "cpu"):
        return BFLOAT16_TOLERANCE
    return CPU_TOLERANCE if device_type == "cpu" else CUDA_TOLERANCE


def check(ranker: Ranker, settings: Mapping[str, object], folder: Path | None, allowed: float) -> None:
    """Returns when the model ranks the windows of the self-test as it should, or reads no passages at all.

    Args:
        settings: what the ranker was configured with, as far as its scores depend on it.
        folder: its checkpoint. A `golden.json` in it that was made with other settings is not compared, and logged.
        allowed: see `tolerance`.

    Raises:
        SelfTestFailed: the ranker raised, or its scores are too few, no numbers, not golden or depend on the batch.
    """
    if not ranker.info.reads_passages:
        return
    scores = _scores(ranker, allowed)
    if folder is not None and (folder / GOLDEN).is_file():
        _check_golden(_read_golden(folder / GOLDEN), scores, ranker, settings, allowed)


def write_golden(ranker: Ranker, settings: Mapping[str, object], folder: Path, within: float = 1e-3) -> None:
    """Writes `golden.json` into the folder of a checkpoint that was loaded on the CPU, in float32.

    Args:
        ranker, settings: as above.
        within: the largest difference that will pass, for other processors and versions round otherwise.

    Raises:
        ConfigError: the ranker's scores are places, which another processor's rounding may swap.
        SelfTestFailed: the model does not pass as it is.
    """
    if ranker.info.score_kind is not ScoreKind.WINDOW_LOG_PROB:
        raise ConfigError(
            f"golden scores are log-probabilities, {ranker.info.kind} gives {ranker.info.score_kind} here"
        )
    golden = Golden(
        model_revision=ranker.info.model_revision,
        made_with=_made_with(ranker, settings),
        scores=_scores(ranker, CPU_TOLERANCE),
        tolerance=within,
    )
    (folder / GOLDEN).write_text(golden.model_dump_json(indent=1) + "\n", encoding="utf-8")


def _scores(ranker: Ranker, allowed: float) -> Scores:
    """The scores of each window ranked alone, if those in a batch are the same."""
    try:
        windows = _windows(ranker.prepare(Query(_QUERY), _passages()), ranker.info.max_window_size)
        alone = [checked(ranker.rank([window]), [window])[0].scores for window in windows]
        together = [ranking.scores for ranking in checked(ranker.rank(windows), windows)]
    except Exception as error:
        raise SelfTestFailed(f"self-test: the model failed on {len(_TEXTS)} short passages: {error!r}") from error
    if ranker.info.score_kind is ScoreKind.RANK and allowed >= BFLOAT16_TOLERANCE:
        return tuple(alone)  # places: rounding may swap two passages
    if (gap := _gap(alone, together)) > allowed:
        raise SelfTestFailed(
            f"self-test: scores of a window alone and in a batch differ by {gap:.2g}, {allowed:.2g} is allowed; "
            "the checkpoint does not fit this version of torch or transformers"
        )
    return tuple(alone)


def _passages() -> list[Passage]:
    return [Passage(f"self-test-{place}", text) for place, text in enumerate(_TEXTS)]


def _windows(prepared: Prepared, widest: int) -> list[Window]:
    """One window of each size that the model reads, beginning at different passages."""
    sizes = sorted({min(size, widest) for size in _SIZES})
    return [Window(prepared.query, prepared.passages[first : first + size]) for first, size in enumerate(sizes)]


def _gap(rows: Sequence[Sequence[float]], others: Sequence[Sequence[float]]) -> float:
    """The largest difference between two scores of the same passage."""
    pairs = (pair for row, other in zip(rows, others, strict=True) for pair in zip(row, other, strict=True))
    return max(abs(one - other) for one, other in pairs)


def _read_golden(path: Path) -> Golden:
    try:
        return Golden.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise SelfTestFailed(f"self-test: {path} cannot be read: {error}; write it again or remove it") from error


def _check_golden(
    golden: Golden, scores: Scores, ranker: Ranker, settings: Mapping[str, object], allowed: float
) -> None:
    if golden.model_revision != ranker.info.model_revision:
        raise SelfTestFailed(
            f"self-test: {GOLDEN} is of weights {golden.model_revision}, these are {ranker.info.model_revision}; "
            "restore the checkpoint, or write it again"
        )
    made_with = _made_with(ranker, settings)
    if changed := sorted(dict(golden.made_with.items() ^ made_with.items())):
        log.info("%s: %s was made with another %s; not compared", ranker.info.model_id, GOLDEN, ", ".join(changed))
        return
    sizes, expected = [len(row) for row in golden.scores], [len(row) for row in scores]
    if sizes != expected:
        raise SelfTestFailed(f"self-test: {GOLDEN} holds rows of {sizes} scores, the self-test has {expected}")
    allowed = max(golden.tolerance, allowed)
    if (gap := _gap(golden.scores, scores)) > allowed:
        raise SelfTestFailed(
            f"self-test: scores differ from {GOLDEN} by {gap:.2g}, {allowed:.2g} is allowed; the checkpoint does not "
            "fit this version of torch or transformers"
        )


def _made_with(ranker: Ranker, settings: Mapping[str, object]) -> dict[str, str]:
    windows = hashlib.sha256("\n".join([_QUERY, *_TEXTS, *map(str, _SIZES)]).encode()).hexdigest()
    own = {key: str(value) for key, value in settings.items()}
    return own | {"template_sha256": ranker.info.template_sha256, "windows_sha256": windows}
