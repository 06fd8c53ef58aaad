"""E2Rank compared with FIRST and PE-Rank: one random checkpoint is all three, over lists of 20 and of 100 passages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from rerank.config import EncoderConfig
from rerank.models.encoder import Encoder
from rerank.rankers.base import Ranker, rank_windows
from rerank.rankers.e2rank import E2RankRanker
from rerank.types import Passage, Query, Window
from scripts.bench.models import make_windows
from scripts.bench.timing import Values, ratios, time_in_turns
from scripts.bench.workload import PASSAGES, Workload


def measure_e2rank(workload: Workload) -> Values:
    """E2Rank with vectors of an index and with new texts; FIRST in windows of 20 from the end, PE-Rank in one."""
    encoder = Encoder(EncoderConfig(name=str(workload.checkpoint), pooling="lasttoken"), "cpu")
    e2rank = E2RankRanker(encoder, True, "e2rank", "Order these documents:", PASSAGES, "float32")
    pe_rank, values = workload.pe_rank(), Values()
    for n in (PASSAGES, 5 * PASSAGES):
        (window,) = make_windows(
            workload.encoder, 1, n, words=4 if workload.quick else None, requests=workload.requests
        )
        seconds = time_in_turns(
            {
                "e2rank": _in_one(e2rank, _with_vectors(window, encoder.id.dimension)),
                "e2rank, new texts": _in_one(e2rank, _with_vectors(window, 0)),
                "first": _from_the_end(workload.first, window),
                "pe_rank": _in_one(pe_rank, _with_vectors(window, workload.encoder.id.dimension)),
            },
            workload.few_repeats,
        )
        of_index = seconds["e2rank"]
        values[f"e2rank_vs_first, {n}"] = ratios(seconds["first"], of_index)
        values[f"e2rank_vs_pe_rank, {n}"] = ratios(seconds["pe_rank"], of_index)
        values[f"e2rank_vs_new texts, {n}"] = ratios(seconds["e2rank, new texts"], of_index)
    return values


def _with_vectors(window: Window, dimension: int) -> Window:
    """The window with a random unit vector for each passage; 0 dimensions: without vectors."""
    noise = np.random.default_rng(0).normal(size=(len(window.passages), dimension)).astype(np.float32)
    rows = noise / np.linalg.norm(noise, axis=1, keepdims=True) if dimension else [None] * len(noise)
    pairs = zip(window.passages, rows, strict=True)
    return replace(window, passages=tuple(replace(passage, vector=row) for passage, row in pairs))


def _in_one(ranker: Ranker, window: Window) -> Callable[[], object]:
    return lambda: _rank(ranker, window.query, window.passages)


def _from_the_end(ranker: Ranker, window: Window) -> Callable[[], object]:
    """Windows of 20 passages with stride 10, one after the other, as sliding windows run."""
    starts = range(len(window.passages) - PASSAGES, -1, -PASSAGES // 2)

    def rank() -> None:
        for start in starts:
            _rank(ranker, window.query, window.passages[start : start + PASSAGES])

    return rank


def _rank(ranker: Ranker, query: Query, passages: tuple[Passage, ...]) -> object:
    prepared = ranker.prepare(query, passages)
    return rank_windows(ranker, [Window(prepared.query, prepared.passages)])
