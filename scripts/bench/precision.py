"""Which precision a GPU should compute a small model in: how far each way moves the orders of float32, and its time.

The bundled FIRST ranks the first 20 candidates of some lists.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from statistics import fmean
from unittest.mock import patch

import torch

from rerank.config import FirstModel, Precision
from rerank.engine.scores import kendall_tau
from rerank.rankers.base import Ranker, rank_windows
from rerank.readers.requests import read_requests
from rerank.reranking.load_models import load_first
from rerank.types import Passage, Query, Window
from scripts.bench.timing import Values, time_in_turns

#: A way to compute → its precision, and the largest hidden size whose residual stream is float32.
WAYS: dict[str, tuple[Precision, int]] = {
    "float32": ("float32", 0),
    "bfloat16": ("bfloat16", 0),
    "bfloat16 with a float32 residual stream": ("bfloat16", 4096),
}
_PASSAGES = 20


def measure_precision(device: torch.device, requests: Path, lists: int = 43, repeats: int = 3) -> Values:
    """Returns Kendall's tau of each way with float32, and milliseconds a window, one window at a time.

    Args:
        requests: RankLLM request file, such as that of TREC DL 2019.
        lists: the number of lists, from the first one on.
        repeats: how often the lists are timed.
    """
    given = [
        (request.query, tuple(Passage(c.doc_id, c.text or "") for c in request.candidates[:_PASSAGES]))
        for request in islice(read_requests(requests), lists)
    ]
    rankers = {way: _load(device, *settings) for way, settings in WAYS.items()}
    orders = {way: _orders(ranker, given) for way, ranker in rankers.items()}

    def rank(ranker: Ranker) -> None:
        _orders(ranker, given)
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    variants = {way: lambda ranker=ranker: rank(ranker) for way, ranker in rankers.items()}
    seconds = time_in_turns(variants, repeats, time.perf_counter)
    values: Values = {f"{way}: ms a window": [1000 * s / len(given) for s in seconds[way]] for way in WAYS}
    for way in list(WAYS)[1:]:
        taus = [_tau(*pair) for pair in zip(orders[way], orders["float32"], strict=True)]
        values[f"{way}: Kendall's tau with float32, mean"] = [fmean(taus)]
    return values


def _load(device: torch.device, precision: Precision, width: int) -> Ranker:
    with patch("rerank.models.precision._MAX_FLOAT32_STREAM_WIDTH", width):
        return load_first(FirstModel(name="first", ranker="first", precision=precision), str(device))


def _orders(ranker: Ranker, given: Sequence[tuple[Query, tuple[Passage, ...]]]) -> list[tuple[int, ...]]:
    prepared = [ranker.prepare(query, passages) for query, passages in given]
    return [rank_windows(ranker, [Window(one.query, one.passages)])[0].permutation for one in prepared]


def _tau(order: Sequence[int], other: Sequence[int]) -> float:
    ranks = {place: rank for rank, place in enumerate(other)}
    tau = kendall_tau([ranks[place] for place in order])
    return 1.0 if tau is None else tau
