"""Callers of a service, in a process of their own, so that they take no time of the service. It is free of torch."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from operator import attrgetter
from statistics import median
from typing import TypeAlias

from rerank.client import RerankClient
from rerank.v1.rerank_pb2 import RerankResponse

#: How long a call may take, in seconds.
_TIMEOUT_S = 100
#: A query, and the passages of its list.
Texts: TypeAlias = tuple[str, list[str]]


@dataclass(frozen=True)
class Calls:
    """The calls of some callers; each caller sends its next one when it has the answer."""

    latencies_ms: list[float]
    replies: list[RerankResponse]
    elapsed_s: float

    @property
    def p50_ms(self) -> float:
        return median(self.latencies_ms)

    @property
    def tokens_per_s(self) -> float:
        return sum(reply.execution.tokens for reply in self.replies) / self.elapsed_s

    @property
    def queries_per_s(self) -> float:
        return len(self.replies) / self.elapsed_s

    @property
    def tokens(self) -> float:
        """Tokens of a call that the model reads before it writes."""
        return self.median_of(lambda execution: execution.tokens - execution.decode_tokens)

    @property
    def note(self) -> str:
        """The parts of the time of a call. The client, the socket and the port take what they leave."""
        parts = {"model": "model_ms", "tokenizing and vectors": "prepare_ms", "waiting": "queue_ms"}
        return "".join(f", {name} {self.median_of(attrgetter(part)):,.0f} ms" for name, part in parts.items())

    def median_of(self, figure: Callable[..., float]) -> float:
        """The median of a figure of the executions."""
        return float(median(figure(reply.execution) for reply in self.replies))


def call(address: str, lists: Sequence[Texts], callers: int) -> Calls:
    """Sends the lists, by some callers at once."""
    with RerankClient(address) as client, ThreadPoolExecutor(callers) as threads:

        def send(texts: Texts) -> tuple[float, RerankResponse]:
            start_s = time.perf_counter()
            reply = client.rerank(*texts, timeout_s=_TIMEOUT_S)
            return 1000 * (time.perf_counter() - start_s), reply

        start_s = time.perf_counter()
        found = list(threads.map(send, lists))
        elapsed_s = time.perf_counter() - start_s
    return Calls([ms for ms, _ in found], [reply for _, reply in found], elapsed_s)
