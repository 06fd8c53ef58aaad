"""Sources of the candidates that systems rank: lists that are given, or the search of a service."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from rerank.readers.requests import CandidateList
from rerank.types import FirstStage, Query, ScoredDoc
from rerank_eval.measures import Run
from rerank_eval.runner import Responses, Variant
from rerank_eval.systems import ServedSystem
from rerank_eval.trace import NOTHING, RankedList


@dataclass(frozen=True, slots=True)
class GivenLists:
    """Lists of candidates that systems rerank.

    Attributes:
        requests: by query_id.
        fingerprint: every setting that decides the candidates.
    """

    requests: Mapping[str, CandidateList]
    fingerprint: Mapping[str, object]

    @property
    def queries(self) -> Mapping[str, Query]:
        return {query_id: request.query for query_id, request in self.requests.items()}

    def variants(self, systems: Mapping[str, ServedSystem], shared: Mapping[str, object]) -> list[Variant]:
        """All systems. `shared`: further settings of their fingerprints."""
        return [
            Variant(name, {**system.fingerprint, **shared, **self.fingerprint}, partial(self._rerank, system))
            for name, system in systems.items()
        ]

    def first_stage(self, _: Responses) -> Run:
        """The candidates as systems receive them."""
        return {
            query_id: _with_ranks(candidate.doc_id for candidate in request.candidates)
            for query_id, request in self.requests.items()
        }

    def _rerank(self, system: ServedSystem, query_id: str) -> RankedList:
        request = self.requests[query_id]
        if not request.candidates or not request.query.text.strip():
            return NOTHING
        return system.rerank(request.query, request.candidates)


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

    def variants(self, systems: Mapping[str, ServedSystem], shared: Mapping[str, object]) -> list[Variant]:
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
            if system.fingerprint["ranker"] != "identity"
        ]

    def first_stage(self, responses: Responses) -> Run:
        """The candidates as the first system received them."""
        rankings = {response.query_id: response.reply for response in next(iter(responses.values()))}
        return {query_id: _with_ranks(ranking.received) for query_id, ranking in rankings.items()}

    def _search(self, system: ServedSystem, options: Mapping[str, Any], query_id: str) -> RankedList:
        query = self.queries[query_id]
        if not query.text.strip():
            return NOTHING
        return system.search(query, first_stage=self.retriever, depth=self.depth, **options)


Source: TypeAlias = GivenLists | Search


def _with_ranks(doc_ids: Iterable[str]) -> list[ScoredDoc]:
    return [ScoredDoc(doc_id, -float(rank)) for rank, doc_id in enumerate(doc_ids)]
