"""Latency, throughput and model cost per query."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from rerank_eval.trace import Response


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Latency, throughput and model cost over all responses of a run.

    Attributes:
        p50_ms: percentile of the latency that the caller sees, network included; likewise `p95_ms` and `p99_ms`.
        queries_per_s: responses divided by the seconds in which at least one query was running.
        windows: mean per query, as are `rounds`, tokens and times; 0 for systems without a service.
        prefill_tokens: positions that the model read before it wrote; `prefill_ms` is their time.
        decode_tokens: tokens that the model wrote; `decode_ms` is their time, which inference servers do not say.
        incomplete: number of queries whose list was reranked only in part.
        truncated: number of passages, over all queries, whose beginning alone the model read.
        truncated_queries: the query_ids of those whose beginning alone the model or its first stage read.
        repaired: number of identifiers, over all queries, that were missing or wrong in generated permutations.
    """

    p50_ms: float
    p95_ms: float
    p99_ms: float
    queries_per_s: float
    windows: float
    rounds: float
    prefill_tokens: float
    prefill_ms: float
    decode_tokens: float
    decode_ms: float
    incomplete: int
    truncated: int
    truncated_queries: tuple[str, ...]
    repaired: int


def efficiency(responses: Sequence[Response]) -> Efficiency | None:
    """The efficiency of a run; None if it has no responses. Queries without results do not count."""
    responses = [response for response in responses if response.reply.doc_ids]
    if not responses:
        return None
    p50, p95, p99 = np.percentile([response.wall_ms for response in responses], [50, 95, 99]).tolist()
    executions = [response.reply.execution for response in responses]
    mean = {
        name: sum(float(execution.get(name, 0)) for execution in executions) / len(executions)
        for name in ("windows", "rounds", "tokens", "model_ms", "decode_tokens", "decode_ms")
    }
    return Efficiency(
        p50,
        p95,
        p99,
        len(responses) / max(busy_s(responses), 1e-9),
        mean["windows"],
        mean["rounds"],
        prefill_tokens=mean["tokens"] - mean["decode_tokens"],
        prefill_ms=mean["model_ms"] - mean["decode_ms"],
        decode_tokens=mean["decode_tokens"],
        decode_ms=mean["decode_ms"],
        incomplete=sum(row.get("completeness", "COMPLETENESS_FULL") != "COMPLETENESS_FULL" for row in executions),
        truncated=sum(len(row.get("truncated_doc_ids", ())) for row in executions),
        truncated_queries=tuple(
            response.query_id for response in responses if response.reply.execution.get("query_truncated")
        ),
        repaired=sum(int(row.get("repaired_identifiers", 0)) for row in executions),
    )


def busy_s(responses: Iterable[Response]) -> float:
    """Seconds in which at least one query was running; the pause before a run is resumed does not count."""
    total, busy_until = 0.0, float("-inf")
    for start, end in sorted(
        (response.ended_at - response.wall_ms / 1000, response.ended_at) for response in responses
    ):
        total += max(0.0, end - max(start, busy_until))
        busy_until = max(busy_until, end)
    return total
