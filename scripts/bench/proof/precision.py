"""Which precision a device should compute a given FIRST model in: Kendall's tau with float32, and the time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from unittest.mock import patch

from rerank.config import FirstModel
from rerank.engine.scores import kendall_tau
from rerank.models.float8 import has_float8
from rerank.rankers.base import Ranker, rank_windows
from rerank.reranking.load_models import load_first
from rerank.types import Passage, Precision, Query, Window
from scripts.bench.proof.setting import PASSAGES, Proof, attempted
from scripts.bench.proof.table import Row, timed

#: A way to compute → its precision, and the largest hidden size whose residual stream is float32 in bfloat16.
WAYS: dict[str, tuple[Precision, int]] = {
    "float32": ("float32", 0),
    "bfloat16": ("bfloat16", 0),
    "bfloat16 with a float32 residual stream": ("bfloat16", 4096),
    "float8": ("float8", 0),
}


def prove_precision(proof: Proof) -> Iterator[Row]:
    """Rows of each way for the first window of each list; nothing unless weights and requests are given."""
    if proof.weights is None or proof.requests is None:
        yield Row("precision of a trained model", "not measured: it needs WEIGHTS and --requests")
        return
    windows = [
        (Query(query), tuple(Passage(f"d{place}", text) for place, text in enumerate(texts[:PASSAGES])))
        for query, texts in proof.lists
    ]
    expected: list[tuple[int, ...]] = []
    for way in WAYS:
        if way != "float8" or has_float8(proof.torch_device):
            load = partial(_load, proof.weights, proof.device.kind, *WAYS[way])
            yield from attempted(way, partial(_measure, proof, way, load, windows, expected))
            proof.free_memory()


def order_tau(order: Sequence[int], other: Sequence[int]) -> float:
    """Kendall's tau of two orders of a window; 1 for a single passage."""
    ranks = {place: rank for rank, place in enumerate(other)}
    tau = kendall_tau([ranks[place] for place in order])
    return 1.0 if tau is None else tau


def _measure(
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


def _load(path: Path, device: str, precision: Precision, width: int) -> Ranker:
    with patch("rerank.models.precision._MAX_FLOAT32_STREAM_WIDTH", width):
        return load_first(FirstModel(name="first", ranker="first", path=path, precision=precision), device)
