"""The reranker of a service with API keys: callers use the models and the part of the queue that their keys allow."""

from __future__ import annotations

from collections.abc import Iterable

from rerank.access.callers import current_caller
from rerank.engine.request import RankRequest
from rerank.reranker import AsyncReranker, SearchResult
from rerank.retrieval.query_update import FeedbackSettings
from rerank.types import CandidateLike, FeedbackMethod, FirstStage, Query, Ranking, RankOptions


class KeyedReranker(AsyncReranker):
    """AsyncReranker of a service with API keys: holds `current_caller` to its models and its queued tokens.

    Without a current caller, as in a call of the service itself, nothing is refused.
    """

    async def rerank(
        self,
        query: Query | str,
        candidates: Iterable[CandidateLike],
        options: RankOptions,
        deadline: float | None = None,
        caller: str = "",
    ) -> Ranking:
        """See AsyncReranker.rerank. Raises also: PermissionDenied."""
        self._check_models(options)
        return await super().rerank(query, candidates, options, deadline, caller)

    async def search(
        self,
        query: Query | str,
        first_stage: FirstStage | str,
        depth: int,
        options: RankOptions,
        deadline: float | None = None,
        feedback: FeedbackSettings | FeedbackMethod | str | None = None,
        caller: str = "",
    ) -> SearchResult:
        """See AsyncReranker.search. Raises also: PermissionDenied."""
        self._check_models(options)
        return await super().search(query, first_stage, depth, options, deadline, feedback, caller)

    def _check_models(self, options: RankOptions) -> None:
        if caller := current_caller.get():
            model = options.model or next(model.name for model in self.models() if model.is_default)
            caller.check_models([model, *filter(None, [options.preranker])])

    async def _run(self, request: RankRequest) -> Ranking:
        caller = current_caller.get()
        if caller is None or caller.limits.max_queue_tokens is None:
            return await super()._run(request)
        with caller.queueing(self.engine.expected_tokens(request)):
            return await super()._run(request)
