"""Queries with their candidates at hand, and how each is put to a system."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from rerank_eval.answers import Reply
from rerank_eval.data import Request
from rerank_eval.experiment import Judge
from rerank_eval.measures import Report
from rerank_eval.orders import Order
from rerank_eval.systems import Baseline, System


@dataclass(frozen=True, slots=True)
class Task:
    """The requests by query_id; `seed` is that of the shuffles."""

    requests: Mapping[str, Request]
    seed: int

    def asker(self, system: System, order: Order) -> Callable[[str], Reply]:
        return partial(self._ask, system, order)

    def _ask(self, system: System, order: Order, query_id: str) -> Reply:
        request = self.requests[query_id]
        positions = order.permutation(len(request.candidates), query_id, self.seed)
        reply = system.rerank(request.query, [request.candidates[position] for position in positions])
        return replace(reply, positions=tuple(positions[place] for place in reply.positions))

    def report(self, system: Baseline, order: Order, judge: Judge) -> Report:
        """Of a system that costs nothing to ask."""
        return judge.report({query_id: self._ask(system, order, query_id).docs for query_id in self.requests})


def task_of(requests: Sequence[Request], depth: int, seed: int) -> Task:
    """Of the first `depth` candidates of each request; 0: all."""
    cut = [replace(request, candidates=request.candidates[: depth or None]) for request in requests]
    return Task({request.query.query_id: request for request in cut}, seed)
