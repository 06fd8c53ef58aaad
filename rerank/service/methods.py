"""The methods of the service, the same for all ports: each checks its request and calls the reranker."""

from __future__ import annotations

import asyncio

from rerank.engine.request import CallerShare
from rerank.reranking.reranker import AsyncReranker, SearchResult
from rerank.service.limits import SMALL_MESSAGE, CallInFlight, CallsInFlight
from rerank.service.requests import RerankRequest, SearchRequest
from rerank.types import Ranking


class RerankMethods:
    """Rerank and Search over one reranker. They raise the exceptions of `rerank.errors`.

    Args:
        reranker: answers the requests.
        calls: the calls in flight, whose limits hold for their requests.
    """

    def __init__(self, reranker: AsyncReranker, calls: CallsInFlight) -> None:
        self._reranker, self._calls = reranker, calls

    async def rerank(self, request: RerankRequest, call: CallInFlight) -> Ranking:
        """Orders the candidates of a request. Raises: RerankError."""
        limits = self._calls.limits
        request = (
            await self._reranker.convert(request.checked, limits)
            if call.size > SMALL_MESSAGE
            else request.checked(limits)
        )
        async with self._calls.until_drained(ranks=True):
            return await self._reranker.rerank(
                request.query, request.candidates, request.options, self._deadline(call), _share(call)
            )

    async def search(self, request: SearchRequest, call: CallInFlight) -> SearchResult:
        """Searches the index. Raises: RerankError."""
        request = request.checked(self._calls.limits)
        async with self._calls.until_drained(ranks=True):
            return await self._reranker.search(
                request.query,
                request.first_stage,
                request.depth,
                request.options,
                self._deadline(call),
                request.feedback,
                _share(call),
            )

    def _deadline(self, call: CallInFlight) -> float:
        """The earlier of the caller's deadline and the service's own limit."""
        return min(call.deadline_s, asyncio.get_running_loop().time() + self._calls.limits.max_request_s)


def _share(call: CallInFlight) -> CallerShare:
    """The share of the engine: its key has one, or its connection if calls need no key."""
    return CallerShare(call.sharer, call.caller.queueing)
