"""Scores on the device: of every ranker against the CPU's in float32, of windows together against alone, and of a given
FIRST model in each precision."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TypeAlias
from unittest.mock import patch

import numpy as np
import numpy.typing as npt

from rerank.config import EncoderConfig, FirstModel, FusionModel
from rerank.engine.scores import kendall_tau
from rerank.models.encoder import Encoder
from rerank.models.linear_layers import has_float8
from rerank.rankers.base import Ranker, rank_windows
from rerank.rankers.e2rank import E2RankRanker
from rerank.rankers.first import FirstRanker
from rerank.rankers.fusion import FusionRanker
from rerank.rankers.pe_rank import PERankRanker
from rerank.rankers.self_test import tolerance
from rerank.reranking.load_models import load_first
from rerank.types import Passage, Precision, Query, ScoreKind, Window
from scripts.bench.models import LlamaSize
from scripts.bench.proof.sections import Row, failed, timed
from scripts.bench.proof.setting import PASSAGES, Proof, attempted

Floats: TypeAlias = npt.NDArray[np.float64]

#: A model that a CPU reads in a second, with layers as wide as small language models have.
_SIZE = LlamaSize(1024, 3072, 8, 16, 8)
#: float8 (e4m3) rounds the operands of a linear layer by up to 2^-4 of their size, so that its outputs are wrong by
#: some .037 of theirs, and so is the sum of all layers: twice as much as in bfloat16 (`self_test.BFLOAT16_TOLERANCE`),
#: before layers amplify it. Unrelated scores differ by 1.4 deviations.
_FLOAT8_BOUND = 0.7
#: A way to compute → its precision, and the largest hidden size whose residual stream is float32 in bfloat16.
WAYS: dict[str, tuple[Precision, int]] = {
    "float32": ("float32", 0),
    "bfloat16": ("bfloat16", 0),
    "bfloat16 with a float32 residual stream": ("bfloat16", 4096),
    "float8": ("float8", 0),
}


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
    windows = _windows(proof)
    for name, (load, precisions) in _rankers(proof).items():
        expected: list[Scores] = []
        yield from attempted(f"{name} on the CPU", partial(_on_cpu, load, windows, expected))
        for precision in precisions if expected else ():
            what = f"{name}, {precision}"
            compare = partial(_compare, proof, what, partial(load, proof.device.kind, precision), windows, expected[0])
            yield from attempted(what, compare)
            proof.free_memory()


def _on_cpu(load: Callable[[str, Precision], Ranker], windows: Sequence[Window], found: list[Scores]) -> Iterator[Row]:
    found.append(_scores(load("cpu", "float32"), windows, together=False))
    yield from ()


def _windows(proof: Proof) -> list[Window]:
    """Two windows, one of them shorter."""
    (first, second), sizes = proof.lists[:2], (PASSAGES, PASSAGES // 2)
    return [
        Window(Query(query), tuple(Passage(f"d{index}", text) for index, text in enumerate(texts[:size])))
        for (query, texts), size in zip((first, second), sizes, strict=True)
    ]


def _rankers(proof: Proof) -> dict[str, tuple[Callable[[str, Precision], Ranker], Sequence[Precision]]]:
    """Functions that load a ranker on a device, and the precisions that the device computes it in."""
    path = proof.checkpoint("agreement", proof.size("7B") if proof.is_tiny else _SIZE, "float32")
    some: tuple[Precision, ...] = ("bfloat16", "float32")
    all_of_them: tuple[Precision, ...] = (*some, "float8") if has_float8(proof.torch_device) else some

    def first(path: Path, device: str, precision: Precision) -> Ranker:
        return FirstRanker(path, "first", device=device, precision=precision)

    def pe_rank(decoding: str, device: str, precision: Precision) -> Ranker:
        encoder = Encoder(EncoderConfig(name=str(proof.encoder), pooling="mean"), device)
        return PERankRanker(path, encoder, device, decoding, "pe_rank_text", precision=precision)  # type: ignore[arg-type]

    def e2rank(device: str, precision: Precision) -> Ranker:
        encoder = Encoder(EncoderConfig(name=str(path), pooling="lasttoken"), device)
        return E2RankRanker(encoder, False, "e2rank", "Order these:", PASSAGES, precision)

    def fusion(device: str, _: Precision) -> Ranker:
        encoder = Encoder(EncoderConfig(name=str(proof.encoder), pooling="mean"), device)
        return FusionRanker(FusionModel(name="fusion", ranker="fusion", sparse_weight=0.0), encoder, None)

    given = {proof.weights.name: (partial(first, proof.weights), all_of_them)} if proof.weights else {}
    return {
        "FIRST": (partial(first, path), all_of_them),
        "PE-Rank in one step": (partial(pe_rank, "one_step"), all_of_them),
        **given,
        "PE-Rank, dynamic": (partial(pe_rank, "dynamic"), some),
        "E2Rank": (e2rank, some),
        "fusion": (fusion, ("bfloat16",)),
    }


def _compare(
    proof: Proof, what: str, load: Callable[[], Ranker], windows: Sequence[Window], expected: Scores
) -> Iterator[Row]:
    ranker = load()
    precision = what.rpartition(", ")[2]
    bound = _FLOAT8_BOUND if precision == "float8" else tolerance(proof.device.kind, precision).deviations
    together, alone = (_scores(ranker, windows, is_together) for is_together in (True, False))
    found = {"the CPU's float32": _deviations(together, expected), "windows alone": _deviations(together, alone)}
    measured = ", ".join(f"{deviations:.2g} from {other}" for other, deviations in found.items())
    taus = [order_tau(*pair) for pair in zip(together.permutations, expected.permutations, strict=True)]
    measured = f"deviations: {measured}; tau {fmean(taus):.3f}"
    worst = max(found.values())
    if not worst <= bound:
        yield failed(what, f"{measured}; {bound} deviations are allowed")
    elif swapped := _swapped(together, expected, bound):
        yield failed(what, f"{measured}; {swapped} pairs that rounding does not explain have changed places")
    else:
        yield Row(what, measured, f"{bound} deviations", f"{worst / bound:.2f}")
    yield timed(f"{what}: two windows", proof.ms(lambda: _scores(ranker, windows, together=True), repeats=3))


def _scores(ranker: Ranker, windows: Sequence[Window], together: bool) -> Scores:
    prepared = [ranker.prepare(window.query, window.passages) for window in windows]
    ready = [Window(item.query, item.passages) for item in prepared]
    groups = [ready] if together else [[window] for window in ready]
    rankings = [ranking for group in groups for ranking in rank_windows(ranker, group)]
    if isinstance(ranker, PERankRanker) and ranker.info.score_kind is ScoreKind.RANK:
        encoded = [[ranker.encode(window) for window in group] for group in groups]
        choices = [choice for group in encoded for window in ranker.choice_scores(group) for choice in window]
        rows = [np.array(choice) for choice in choices if len(choice) > 1]
    else:
        rows = [np.array(ranking.scores) for ranking in rankings]
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


def prove_precision(proof: Proof) -> Iterator[Row]:
    """Rows of each way for the first window of each list; nothing unless weights and requests are given."""
    if proof.weights is None or proof.requests is None:
        yield Row("precision of a trained model", "not measured: it needs WEIGHTS and --requests")
        return
    windows = [
        (Query(query), tuple(Passage(f"d{index}", text) for index, text in enumerate(texts[:PASSAGES])))
        for query, texts in proof.lists
    ]
    expected: list[tuple[int, ...]] = []
    for way in WAYS:
        if way != "float8" or has_float8(proof.torch_device):
            load = partial(_load_first, proof.weights, proof.device.kind, *WAYS[way])
            yield from attempted(way, partial(_measure_way, proof, way, load, windows, expected))
            proof.free_memory()


def order_tau(order: Sequence[int], other: Sequence[int]) -> float:
    """Kendall's tau of two orders of a window; 1 for a single passage."""
    ranks = {index: rank for rank, index in enumerate(other)}
    tau = kendall_tau([ranks[index] for index in order])
    return 1.0 if tau is None else tau


def _measure_way(
    proof: Proof,
    way: str,
    load: Callable[[], Ranker],
    windows: Sequence[tuple[Query, tuple[Passage, ...]]],
    expected: list[tuple[int, ...]],
) -> Iterator[Row]:
    """The first way, float32, fills `expected` with its orders."""
    ranker = load()
    prepared = [ranker.prepare(*window) for window in windows]
    ready = [Window(one.query, one.passages) for one in prepared]
    orders = [rank_windows(ranker, [window])[0].permutation for window in ready]
    expected[:] = expected or orders
    tau = fmean(map(order_tau, orders, expected))
    what = f"{ranker.info.model_id}, {way}, {len(windows)} windows of {PASSAGES}, one by one"
    yield Row(f"{what}: Kendall's tau with float32", f"{tau:.4f}")
    ms = proof.ms(lambda: [rank_windows(ranker, [window]) for window in ready], repeats=2, warm_up=0)
    yield timed(f"{what}: a window", ms / len(windows))


def _load_first(path: Path, device: str, precision: Precision, width: int) -> Ranker:
    with patch("rerank.models.precision._MAX_FLOAT32_STREAM_WIDTH", width):
        return load_first(FirstModel(name="first", ranker="first", path=path, precision=precision), device)
