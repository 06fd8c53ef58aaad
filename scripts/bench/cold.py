"""A list whose texts the service has never seen, and the same list again, beside encoding all of its passages.

Behind a search backend nearly every request brings new texts, so the first of these times is the one that counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from statistics import quantiles
from typing import TypeAlias

from rerank.readers.requests import read_requests
from rerank.reranking.blocking import Reranker
from rerank.types import Passage
from scripts.bench.timing import Values
from scripts.bench.workload import PASSAGES, Workload

#: Candidates of a list, and the most lists that are timed.
_DEPTH, _LISTS = 100, 43

_List: TypeAlias = tuple[str, Sequence[Passage]]


def measure_cold(workload: Workload) -> Values:
    """Milliseconds by the clock on one core for each list, p95 of them, and encoding all / the default model."""
    cold, warm, encoding = list[float](), list[float](), list[float]()
    lists = _random_lists(workload) if workload.requests is None else _lists_of(workload)
    with Reranker("default") as reranker:
        for number, (query, candidates) in enumerate(lists):
            times = [_ms(partial(reranker.rerank, query, candidates)) for _ in range(2)]
            texts = [candidate.text or "" for candidate in candidates]
            of_encoder = _ms(partial(workload.encoder.encode_passages, texts, "auto"))
            if number:  # the first list warms up
                cold.append(times[0])
                warm.append(times[1])
                encoding.append(of_encoder)
    named = {"cold, default, ms": cold, "warm, default, ms": warm, "encoding all passages, ms": encoding}
    p95 = {f"{name}, p95": [quantiles(values, n=20, method="inclusive")[18]] for name, values in named.items()}
    ratios = [all_passages / default for all_passages, default in zip(encoding, cold, strict=True)]
    return named | p95 | {"encoding all / default, cold": ratios}


def _lists_of(workload: Workload) -> Iterator[_List]:
    if workload.requests is None:
        raise ValueError("there is no file of requests; this is a bug")
    for request in islice(read_requests(workload.requests), 2 if workload.quick else _LISTS):
        yield request.query.text, request.candidates[:_DEPTH]


def _random_lists(workload: Workload) -> Iterator[_List]:
    """Lists of the random texts of the windows, each made new by a number in front."""
    for number in range(3 if workload.quick else len(workload.windows)):
        passages = workload.windows[number % len(workload.windows)].passages
        copies = 1 if workload.quick else _DEPTH // PASSAGES
        texts = [f"{number} {copy} {passage.text}" for copy in range(copies) for passage in passages]
        yield "a query", [Passage(f"d{place}", text) for place, text in enumerate(texts)]


def _ms(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return (time.perf_counter() - start) * 1000
