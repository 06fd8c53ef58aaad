"""Candidate lists to rerank: the queries with their candidates, as each system receives them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from rerank.prompting.style import PromptStyle
from rerank.readers.requests import Request
from rerank_eval.measures import Run
from rerank_eval.orders import Order
from rerank_eval.systems import Baseline, System
from rerank_eval.trace import Ranking


def with_repaired_texts(request: Request) -> Request:
    """The request with the texts of its candidates as RankLLM prepares them. Raises: ConfigError without ftfy."""
    style = PromptStyle(ftfy=True, max_words=300)
    candidates = (
        replace(row, text=style.passage_text(row.text or ""), title=style.passage_text(row.title))
        for row in request.candidates
    )
    return replace(request, candidates=tuple(candidates))


def without_scores(request: Request) -> Request:
    """The request without the first stage's scores."""
    return replace(request, candidates=tuple(replace(row, score=None) for row in request.candidates))


def in_index(request: Request) -> Request:
    """The request with candidates that refer to the index of the service."""
    return replace(request, candidates=tuple(replace(row, in_index=True) for row in request.candidates))


@dataclass(frozen=True, slots=True)
class CandidateLists:
    """Requests by query_id, and the seed of the shuffled orders."""

    requests: Mapping[str, Request]
    seed: int

    @classmethod
    def of_requests(cls, requests: Sequence[Request], depth: int, seed: int) -> CandidateLists:
        """The first `depth` candidates of each request; 0: all."""
        truncated = [replace(request, candidates=request.candidates[: depth or None]) for request in requests]
        return cls({request.query.query_id: request for request in truncated}, seed)

    def reranker(self, system: System, order: Order) -> Callable[[str], Ranking]:
        """A function from a query_id to the system's ranking of the candidates, which it receives in this order."""
        return partial(self._rerank, system, order)

    def run(self, baseline: Baseline, order: Order) -> Run:
        """The run of a baseline, without a trace file."""
        return {query_id: self._rerank(baseline, order, query_id).docs for query_id in self.requests}

    @property
    def query_texts(self) -> dict[str, str]:
        """The text of every query, by query_id."""
        return {query_id: request.query.text for query_id, request in self.requests.items()}

    def texts(self, query_id: str, doc_ids: Collection[str]) -> dict[str, str]:
        """The texts of these candidates of a query, by doc_id."""
        candidates = self.requests[query_id].candidates
        return {row.doc_id: row.text or "" for row in candidates if row.doc_id in doc_ids}

    def _rerank(self, system: System, order: Order, query_id: str) -> Ranking:
        request = self.requests[query_id]
        permutation = order.permutation(len(request.candidates), query_id, self.seed)
        candidates = [request.candidates[position] for position in permutation]
        ranking = system.rerank(request.query, candidates, order.is_ordered)
        return replace(ranking, positions=tuple(permutation[position] for position in ranking.positions))
