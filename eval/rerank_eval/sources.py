"""Sources of the candidates that systems rank: lists that are given, or the search of a service."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

from rerank.readers.requests import CandidateList
from rerank.types import FirstStage, Query, ScoredDoc
from rerank_eval.measures import Run
from rerank_eval.orders import ORIGINAL, Order
from rerank_eval.runner import Responses, Variant
from rerank_eval.systems import System
from rerank_eval.trace import NOTHING, RankedList

#: The name of the row that shows the candidates as systems receive them.
FIRST_STAGE = "first stage"


@dataclass(frozen=True, slots=True)
class GivenLists:
    """Lists of candidates that systems rerank.

    Attributes:
        requests: by query_id.
        fingerprint: every setting that decides the candidates.
        orders: in which systems receive the candidates.
        seed: of the shuffled orders.
    """

    requests: Mapping[str, CandidateList]
    fingerprint: Mapping[str, object]
    orders: Sequence[Order] = (ORIGINAL,)
    seed: int = 0

    @property
    def queries(self) -> Mapping[str, Query]:
        return {query_id: request.query for query_id, request in self.requests.items()}

    def variants(self, systems: Mapping[str, System], shared: Mapping[str, object]) -> list[Variant]:
        """All systems in the first order, then in each other one. `shared`: further settings of their fingerprints."""
        return [
            Variant(
                order.label(name),
                {**system.fingerprint, **shared, **self.fingerprint, "order": order.name},
                partial(self._rerank, system, order),
            )
            for order in self.orders
            for name, system in systems.items()
        ]

    def first_stages(self, _: Responses) -> dict[str, Run]:
        """The candidates as systems receive them, by name of the order."""
        return {
            order.label(FIRST_STAGE): {
                query_id: _with_ranks(request.candidates[place].doc_id for place in self._permutation(request, order))
                for query_id, request in self.requests.items()
            }
            for order in self.orders
        }

    def _permutation(self, request: CandidateList, order: Order) -> list[int]:
        return order.permutation(len(request.candidates), request.query.query_id, self.seed)

    def _rerank(self, system: System, order: Order, query_id: str) -> RankedList:
        request = self.requests[query_id]
        if not request.candidates or not request.query.text.strip():
            return NOTHING
        permutation = self._permutation(request, order)
        candidates = [request.candidates[position] for position in permutation]
        ranking = system.rerank(request.query, candidates, order.is_ordered)
        return replace(ranking, positions=tuple(permutation[position] for position in ranking.positions))


@dataclass(frozen=True, slots=True)
class Search:
    """Retrieval by the first stage of a service, whose candidates systems rerank.

    Attributes:
        queries: by query_id.
        fingerprint: every setting that decides the candidates.
        feedback: fields of the message Feedback (rerank.proto), of a second search; None: there is none.
    """

    queries: Mapping[str, Query]
    fingerprint: Mapping[str, object]
    retriever: FirstStage
    depth: int
    feedback: Mapping[str, object] | None = None

    def variants(self, systems: Mapping[str, System], shared: Mapping[str, object]) -> list[Variant]:
        """All systems, then those that search with feedback. `shared`: further settings of their fingerprints."""
        variants = [
            Variant(name, {**system.fingerprint, **shared, **self.fingerprint}, partial(self._search, system, {}))
            for name, system in systems.items()
        ]
        if self.feedback is None or not self.retriever.reads_vectors:  # it has no query vector to update
            return variants
        return variants + [
            Variant(
                f"{name}.feedback",
                {**system.fingerprint, **shared, **self.fingerprint, "feedback": self.feedback},
                partial(self._search, system, {"feedback": self.feedback}),
            )
            for name, system in systems.items()
            # identity would only append the passages of the second search
            if system.is_served and system.fingerprint["ranker"] != "identity"
        ]

    def first_stages(self, responses: Responses) -> dict[str, Run]:
        """The candidates as the first system received them."""
        rankings = {response.query_id: response.ranking for response in next(iter(responses.values()))}
        return {FIRST_STAGE: {query_id: _with_ranks(ranking.received) for query_id, ranking in rankings.items()}}

    def _search(self, system: System, options: Mapping[str, Any], query_id: str) -> RankedList:
        query = self.queries[query_id]
        if not query.text.strip():
            return NOTHING
        return system.search(query, first_stage=self.retriever, depth=self.depth, **options)


Source: TypeAlias = GivenLists | Search


def _with_ranks(doc_ids: Iterable[str]) -> list[ScoredDoc]:
    return [ScoredDoc(doc_id, -float(rank)) for rank, doc_id in enumerate(doc_ids)]
