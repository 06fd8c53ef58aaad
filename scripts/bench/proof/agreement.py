"""Scores on the device, compiled, against plain ones in float32: the CPU's, or for given weights the device's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from rerank.config import EncoderConfig, FirstModel, FusionModel
from rerank.engine.scores import kendall_tau
from rerank.models.encoder import Encoder
from rerank.models.linear_layers import has_float8
from rerank.rankers.base import Ranker, rank_windows
from rerank.rankers.e2rank import E2RankRanker
from rerank.rankers.fusion import FusionRanker
from rerank.rankers.pe_checkpoint import Decoding
from rerank.rankers.pe_rank import PERankRanker
from rerank.rankers.self_test import tolerance
from rerank.reranking.load_models import load_first
from rerank.types import Passage, Precision, Query, ScoreKind, Window
from scripts.bench.models import LlamaSize
from scripts.bench.proof.callers import Texts
from scripts.bench.proof.setting import Proof
from scripts.bench.proof.table import Row, attempted, failed, timed
from scripts.bench.workload import PASSAGES

Floats: TypeAlias = npt.NDArray[np.float64]
#: Loads a ranker on a device, in a precision.
Load: TypeAlias = Callable[[str, Precision], Ranker]

#: A model that a CPU reads in a second, with layers as wide as small language models have.
_SIZE = LlamaSize(1024, 3072, 8, 16, 8)
#: float8 (e4m3) rounds the operands of a linear layer by up to 2^-4 of their size, so that its outputs are wrong by
#: some .037 of theirs, and so is the sum of all layers: twice as much as in bfloat16 (`self_test.BFLOAT16_TOLERANCE`),
#: before layers amplify it. Unrelated scores differ by 1.4 deviations.
_FLOAT8_BOUND = 0.7


@dataclass(frozen=True)
class Scores:
    """The scores and orders that a ranker gives to some windows.

    Attributes:
        rows: scores that rounding changes steadily: of a window, or of each choice of a window if scores are ranks.
        permutations: the order of each window.
    """

    rows: list[Floats]
    permutations: list[tuple[int, ...]]


def prove_agreement(proof: Proof) -> Iterator[Row]:
    """A row for each ranker and precision, judged by the bounds of the self-test."""
    windows = [_window(texts, size) for texts, size in zip(proof.lists, (PASSAGES, PASSAGES // 2), strict=False)]
    for name, load in _rankers(proof).items():
        yield from attempted(name, partial(_compare, proof, name, load, "cpu", windows))
        proof.free_memory()
    if proof.weights:
        name, windows = proof.weights.name, [_window(texts) for texts in proof.lists]
        yield from attempted(
            name, partial(_compare, proof, name, partial(_first, proof.weights), proof.device.type, windows)
        )


def _first(path: Path, device: str, precision: Precision) -> Ranker:
    return load_first(FirstModel(name="first", ranker="first", path=path, precision=precision), device)


def _window(texts: Texts, size: int = PASSAGES) -> Window:
    return Window(Query(texts[0]), tuple(Passage(f"d{index}", text) for index, text in enumerate(texts[1][:size])))


def _rankers(proof: Proof) -> dict[str, Load]:
    path = proof.checkpoint("agreement", proof.size("") if proof.is_tiny else _SIZE, has_weights=True)

    def encoder(device: str, pooling: str, name: Path) -> Encoder:
        return Encoder(EncoderConfig.model_validate({"name": str(name), "pooling": pooling}), device)

    def pe_rank(decoding: Decoding, device: str, precision: Precision) -> Ranker:
        encodes = encoder(device, "mean", proof.encoder)
        return PERankRanker(path, encodes, device, decoding, "pe_rank_text", precision=precision)

    def e2rank(device: str, precision: Precision) -> Ranker:
        return E2RankRanker(encoder(device, "lasttoken", path), False, "e2rank", "Order:", PASSAGES, precision)

    def fusion(device: str, _: Precision) -> Ranker:
        model = FusionModel(name="fusion", ranker="fusion", sparse_weight=0.0)
        return FusionRanker(model, encoder(device, "mean", proof.encoder), None)

    return {
        "FIRST": partial(_first, path),
        "PE-Rank in one step": partial(pe_rank, "one_step"),
        "PE-Rank, dynamic": partial(pe_rank, "dynamic"),
        "E2Rank": e2rank,
        "fusion": fusion,
    }


def _compare(proof: Proof, name: str, load: Load, plain: str, windows: Sequence[Window]) -> Iterator[Row]:
    """Rows of each precision; `plain` is the device that gives the expected scores, in float32."""
    expected = _scores(load(plain, "float32"), windows, together=False)
    precisions: list[Precision] = ["float32", "bfloat16"]
    if has_float8(proof.device) and name not in ("PE-Rank, dynamic", "E2Rank", "fusion"):
        precisions.append("float8")
    for precision in precisions:
        ranker = load(proof.device.type, precision)
        bound = _FLOAT8_BOUND if precision == "float8" else tolerance(proof.device.type, precision).deviations
        yield judged(f"{name}, {precision}", bound, expected, *(_scores(ranker, windows, way) for way in (True, False)))
        yield timed(f"{name}, {precision}: {len(windows)} windows", proof.ms(lambda: _scores(ranker, windows, True)))  # noqa: B023


def judged(what: str, bound: float, expected: Scores, together: Scores, alone: Scores) -> Row:
    """The row of a comparison, which fails beyond a bound in deviations of the scores."""
    found = {"float32": _deviations(together, expected), "windows alone": _deviations(together, alone)}
    taus = [order_tau(*pair) for pair in zip(together.permutations, expected.permutations, strict=True)]
    measured = ", ".join(f"{deviations:.2g} from {other}" for other, deviations in found.items())
    measured, worst = f"deviations: {measured}; tau {fmean(taus):.3f}", max(found.values())
    if not worst <= bound:
        return failed(what, f"{measured}; {bound} deviations are allowed")
    if swapped := _swapped(together, expected, bound):
        return failed(what, f"{measured}; {swapped} pairs that rounding does not explain have changed places")
    return Row(what, measured, f"{bound} deviations", f"{worst / bound:.2f}")


def _scores(ranker: Ranker, windows: Sequence[Window], together: bool) -> Scores:
    prepared = [ranker.prepare(window.query, window.passages) for window in windows]
    ready = [Window(item.query, item.passages) for item in prepared]
    groups = [ready] if together else [[window] for window in ready]
    rankings = [ranking for group in groups for ranking in rank_windows(ranker, group)]
    rows = [np.array(ranking.scores) for ranking in rankings]
    if isinstance(ranker, PERankRanker) and ranker.info.score_kind is ScoreKind.RANK:
        encoded = [[ranker.encode(window) for window in group] for group in groups]
        choices = [choice for group in encoded for window in ranker.choice_scores(group) for choice in window]
        rows = [np.array(choice) for choice in choices if len(choice) > 1]
    return Scores(rows, [ranking.permutation for ranking in rankings])


def _deviations(scores: Scores, others: Scores) -> float:
    """The largest root mean square of differences in a row, in standard deviations of the others' scores.

    A constant difference in a row counts for nothing. The deviation is that over all rows: a short row may have none.
    """
    rows = [(a - a.mean(), b - b.mean()) for a, b in zip(scores.rows, others.rows, strict=True)]
    deviation = np.concatenate([theirs for _, theirs in rows]).std()
    return max(float(np.sqrt(np.mean((ours - theirs) ** 2)) / deviation) for ours, theirs in rows)


def _swapped(scores: Scores, others: Scores, bound: float) -> int:
    """The number of pairs that are farther apart than four bounds on one side, and in another order on the other."""
    deviation = np.concatenate([row - row.mean() for row in others.rows]).std()
    count = 0
    for ours, theirs in zip(scores.rows, others.rows, strict=True):
        gaps, expected = (np.subtract.outer(row, row) / deviation for row in (ours, theirs))
        count += int(((expected > 4 * bound) & (gaps < 0)).sum())
    return count


def order_tau(order: Sequence[int], other: Sequence[int]) -> float:
    """Kendall's tau of two orders of a window; 1 for a single passage."""
    ranks = {index: rank for rank, index in enumerate(other)}
    tau = kendall_tau([ranks[index] for index in order])
    return 1.0 if tau is None else tau
