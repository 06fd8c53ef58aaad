"""The methods of the service, the same for all ports: each checks its request and calls the reranker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import accumulate

from rerank.access.callers import Caller
from rerank.reranking.registry import ModelDescription
from rerank.reranking.reranker import AsyncReranker, SearchResult
from rerank.retrieval.index import IndexManifest
from rerank.service.calls import SMALL_MESSAGE, CallRecord
from rerank.service.requests import RerankRequest, SearchRequest
from rerank.types import Ranking, RankOptions


@dataclass(frozen=True, slots=True)
class ServedModels:
    """The models that requests may name, and the manifest of the index; None without an index."""

    models: list[ModelDescription]
    manifest: IndexManifest | None


class RerankMethods:
    """Rerank, Search and ListModels over one reranker. Their exceptions are those of `rerank.errors`."""

    def __init__(self, reranker: AsyncReranker) -> None:
        self._reranker = reranker

    async def rerank(self, request: RerankRequest, record: CallRecord) -> Ranking:
        """Orders the candidates of a request; notes request and ranking in the record. Raises: RerankError."""
        record.request = request
        limits = self._reranker.config.limits
        is_large = _is_large(request)
        request = await self._reranker.convert(request.checked, limits) if is_large else request.checked(limits)
        ranking = await self._reranker.rerank(
            request.query,
            request.candidates,
            self._options(record.caller, request.options),
            self._deadline(record),
            record.key or record.peer,
            _queueing(record.caller),
        )
        record.ranking = ranking
        return ranking

    async def search(self, request: SearchRequest, record: CallRecord) -> SearchResult:
        """Searches the index; notes request and result in the record. Raises: RerankError."""
        record.request = request
        request = request.checked(self._reranker.config.limits)
        result = await self._reranker.search(
            request.query,
            request.first_stage,
            request.depth,
            self._options(record.caller, request.options),
            self._deadline(record),
            request.feedback,
            record.key or record.peer,
            _queueing(record.caller),
        )
        record.search, record.ranking = result, result.ranking
        return result

    def list_models(self) -> ServedModels:
        """The models and the index."""
        index = self._reranker.index
        return ServedModels(self._reranker.models(), index.manifest if index else None)

    def _deadline(self, record: CallRecord) -> float:
        """The earlier of the caller's deadline and the service's own limit."""
        return min(record.deadline, asyncio.get_running_loop().time() + self._reranker.config.limits.max_request_s)

    def _options(self, caller: Caller | None, options: RankOptions) -> RankOptions:
        """The options, with the defaults of the caller's key. Raises: PermissionDenied if it does not allow a model."""
        if caller is None:
            return options
        default, *_ = self._reranker.models()
        caller.check_models([options.model or default.name, *filter(None, [options.preranker])])
        return replace(
            options,
            on_failure=options.on_failure or caller.limits.on_failure or "",
            first_stage_kind=options.first_stage_kind or caller.limits.first_stage_kind or "",
        )


def _queueing(caller: Caller | None) -> Callable[[float], AbstractContextManager[None]] | None:
    """The block that holds a caller to its tokens in work; None for a caller without a bound."""
    return None if caller is None or caller.limits.max_queue_tokens is None else caller.queueing


def _is_large(request: RerankRequest) -> bool:
    sizes = (len(each.text or "") + len(each.title) for each in request.candidates)
    return any(chars > SMALL_MESSAGE for chars in accumulate(sizes))
