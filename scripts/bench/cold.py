"""A list whose texts the service has never seen, and the same list again, compared with encoding all of its passages.

After a search backend nearly every request brings new texts, so the first of these times is the one that counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from statistics import quantiles

from rerank.reranking.blocking import Reranker
from scripts.bench.timing import Values
from scripts.bench.workload import Workload


def measure_cold(workload: Workload) -> Values:
    """Milliseconds by the clock on one core for each list, p95 of them, and encoding all / the default model."""
    cold, warm, encoding = list[float](), list[float](), list[float]()
    with Reranker("default") as reranker:
        for number, (query, candidates) in enumerate(workload.lists()):
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


def _ms(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return (time.perf_counter() - start) * 1000
