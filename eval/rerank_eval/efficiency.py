"""How long answers took, and what they took."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from rerank_eval.answers import Answer


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Over all answers. Milliseconds are the caller's, the way there and back included.

    Attributes:
        queries_per_s: answers by the time in which at least one was under way.
        windows: mean a query, as are `rounds` and `tokens`; 0 where nothing was served.
        incomplete: queries whose list was not reranked in full.
        truncated: passages, over all queries, of which the model read the beginning only.
        repaired: identifiers of generated answers that were mended, over all queries.
    """

    p50_ms: float
    p95_ms: float
    p99_ms: float
    queries_per_s: float
    windows: float
    rounds: float
    tokens: float
    incomplete: int
    truncated: int
    repaired: int


def efficiency(answers: Sequence[Answer]) -> Efficiency | None:
    """None where there are no answers."""
    if not answers:
        return None
    p50, p95, p99 = np.percentile([answer.wall_ms for answer in answers], [50, 95, 99]).tolist()
    ran = [answer.reply.execution for answer in answers]
    windows, rounds, tokens = (
        sum(float(execution.get(name, 0)) for execution in ran) / len(ran) for name in ("windows", "rounds", "tokens")
    )
    return Efficiency(
        p50,
        p95,
        p99,
        len(answers) / max(busy_s(answers), 1e-9),
        windows,
        rounds,
        tokens,
        incomplete=sum(execution.get("completeness", "COMPLETENESS_FULL") != "COMPLETENESS_FULL" for execution in ran),
        truncated=sum(len(execution.get("truncated_doc_ids", ())) for execution in ran),
        repaired=sum(int(execution.get("repaired_identifiers", 0)) for execution in ran),
    )


def busy_s(answers: Iterable[Answer]) -> float:
    """Seconds in which at least one of the answers was under way; the pause before a run is resumed is none of them."""
    total, until = 0.0, float("-inf")
    for begun, ended in sorted((answer.ended_at - answer.wall_ms / 1000, answer.ended_at) for answer in answers):
        total += max(0.0, ended - max(begun, until))
        until = max(until, ended)
    return total
