"""RPC → checked call → reranker → reply."""

from __future__ import annotations

import asyncio
from typing import Any, TypeAlias

import grpc

from rerank.errors import ShuttingDown
from rerank.reranker import AsyncReranker
from rerank.service import convert
from rerank.v1 import rerank_pb2 as pb
from rerank.v1 import rerank_pb2_grpc

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]


class RerankServicer(rerank_pb2_grpc.RerankServiceServicer):
    """The three methods. Errors become statuses in StatusInterceptor."""

    def __init__(self, reranker: AsyncReranker) -> None:
        self._reranker = reranker
        self._limits = reranker.config.limits
        self._refusing = False
        self._in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def refuse_new_calls(self) -> None:
        """From now on every call gets UNAVAILABLE."""
        self._refusing = True

    async def wait_until_idle(self) -> None:
        """Returns when no call is in flight."""
        await self._idle.wait()

    async def Rerank(self, request: pb.RerankRequest, context: Context) -> pb.RerankResponse:  # noqa: N802
        self._count(context)
        call = convert.rerank_call(request, self._limits)
        ranking = await self._reranker.rerank(call.query, call.candidates, call.options, self._deadline(context))
        return convert.rerank_response(ranking, call.return_passages)

    async def Search(self, request: pb.SearchRequest, context: Context) -> pb.SearchResponse:  # noqa: N802
        self._count(context)
        call = convert.search_call(request, self._limits)
        result = await self._reranker.search(
            call.query, call.first_stage, call.depth, call.options, self._deadline(context), call.feedback
        )
        return convert.search_response(result, call.return_passages)

    async def ListModels(  # noqa: N802
        self, request: pb.ListModelsRequest, context: Context
    ) -> pb.ListModelsResponse:
        self._count(context)
        index = self._reranker.index
        return convert.list_models_response(self._reranker.models(), index.manifest if index else None)

    def _deadline(self, context: Context) -> float:
        """The caller's deadline, or the service's own bound if that comes first; on the event loop's clock."""
        remaining = context.time_remaining()
        allowed = self._limits.max_request_s if remaining is None else min(remaining, self._limits.max_request_s)
        return asyncio.get_running_loop().time() + allowed

    def _count(self, context: Context) -> None:
        """Takes the call into account until its answer has left."""
        if self._refusing:
            raise ShuttingDown("the service is stopping; try another replica")
        self._in_flight += 1
        self._idle.clear()
        context.add_done_callback(lambda _: self._uncount())  # type: ignore[arg-type]  # the stubs want a class

    def _uncount(self) -> None:
        self._in_flight -= 1
        if self._in_flight == 0:
            self._idle.set()
