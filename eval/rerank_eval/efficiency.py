"""Latency, throughput and model cost per query."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from rerank_eval.trace import Response

#: Columns of the report with their decimal places. Latency is what the caller sees; prefill is what the model reads
#: before it writes, decode what it writes token by token. From `windows` on, the numbers are means per query.
COLUMNS = {
    "p50 ms": 1,
    "p95 ms": 1,
    "p99 ms": 1,
    "queries/s": 2,
    "windows": 1,
    "rounds": 1,
    "prefill tokens": 0,
    "prefill ms": 0,
    "decode tokens": 0,
    "decode ms": 0,
}
#: Number of truncated queries that a warning names.
_NAMED = 20


def efficiency(responses: Sequence[Response]) -> dict[str, float]:
    """Maps the names in COLUMNS to their values over all queries with results; empty without results."""
    responses = [response for response in responses if response.reply.doc_ids]
    if not responses:
        return {}
    executions = [response.reply.execution for response in responses]
    windows, rounds, tokens, model_ms, decode_tokens, decode_ms = (
        sum(float(execution.get(name, 0)) for execution in executions) / len(executions)
        for name in ("windows", "rounds", "tokens", "model_ms", "decode_tokens", "decode_ms")
    )
    latencies = np.percentile([response.wall_ms for response in responses], [50, 95, 99]).tolist()
    queries_per_s = len(responses) / max(busy_s(responses), 1e-9)
    prefill = (tokens - decode_tokens, model_ms - decode_ms)
    values = (*latencies, queries_per_s, windows, rounds, *prefill, decode_tokens, decode_ms)
    return dict(zip(COLUMNS, values, strict=True))


def warnings(responses: Sequence[Response]) -> Iterator[str]:
    """Facts that change how the figures are read: partial lists, truncated texts, repairs."""
    executions = [response.reply.execution for response in responses]
    completeness = Counter(row.get("completeness") for row in executions)
    truncated = sum(len(row.get("truncated_doc_ids", ())) for row in executions)
    repaired, generated = (
        sum(int(row.get(name, 0)) for row in executions) for name in ("repaired_identifiers", "generated_identifiers")
    )
    share = f"({repaired / generated:.0%})" if repaired else ""
    facts = (
        (completeness["COMPLETENESS_PARTIAL"], "lists were reranked only in part"),
        (completeness["COMPLETENESS_NONE"], "lists kept the order of their first stage"),
        (truncated, "passages were truncated"),
        (repaired, f"of {generated} places in generated permutations were repaired {share}"),
    )
    if said := ", ".join(f"{count} {what}" for count, what in facts if count):
        yield f"{said}."
    if queries := [response.query_id for response in responses if response.reply.execution.get("query_truncated")]:
        yield (
            f"{len(queries)} queries are longer than a model reads and were truncated: {', '.join(queries[:_NAMED])}"
            f"{' and others' if len(queries) > _NAMED else ''}."
        )


def busy_s(responses: Iterable[Response]) -> float:
    """Seconds while at least one query was running; the pause before a run is resumed does not count."""
    total, busy_until = 0.0, float("-inf")
    for start, end in sorted(
        (response.ended_at - response.wall_ms / 1000, response.ended_at) for response in responses
    ):
        total += max(0.0, end - max(start, busy_until))
        busy_until = max(busy_until, end)
    return total
