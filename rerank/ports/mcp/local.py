"""Answers calls of the MCP tools with the models of this process, and logs them like the calls of any other port."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from rerank.errors import grpc_status_of
from rerank.ports.mcp.tools import ToolAnswer, ToolRequest, ToolService, tool_answer
from rerank.ports.message_methods import MessageMethods
from rerank.protobuf.replies import list_models_response
from rerank.reranking.reranker import AsyncReranker
from rerank.service.call import CallRecord, OnEnd
from rerank.service.in_flight import CallsInFlight
from rerank.service.methods import served_models
from rerank.v1 import rerank_pb2 as pb

#: Makes the record of a call of this method.
NewRecord: TypeAlias = Callable[[str], CallRecord]
#: Name in the ASGI scope of an HTTP request → the NewRecord of the calls that it brings.
NEW_RECORD = "rerank.new_record"


def local_service(reranker: AsyncReranker, calls: CallsInFlight, on_end: OnEnd) -> ToolService:
    """The service of an open reranker in this process. `on_end` observes each call of a tool."""
    methods = MessageMethods(reranker, calls)

    async def ask(request: ToolRequest, http_request: Any) -> ToolAnswer:
        new_record: NewRecord = http_request.scope[NEW_RECORD] if http_request else _record_over_stdio
        if isinstance(request, pb.SearchRequest):
            with _observed(new_record("Search"), on_end) as record:
                return tool_answer(await methods.search(request, record))
        with _observed(new_record("Rerank"), on_end) as record:
            return tool_answer(await methods.rerank(request, record))

    def models() -> pb.ListModelsResponse:
        return list_models_response(served_models(reranker))

    return ToolService(ask, models, lambda: calls.limits)


def _record_over_stdio(method: str) -> CallRecord:
    return CallRecord(method, uuid.uuid4().hex, "stdio")


@contextmanager
def _observed(record: CallRecord, on_end: OnEnd) -> Iterator[CallRecord]:
    """Notes in the record how a block ends, and hands the record on."""
    start_s = time.perf_counter()
    try:
        yield record
        record.status = "OK"
    except Exception as error:
        record.error, record.status = error, grpc_status_of(type(error))
        raise
    finally:
        record.seconds = time.perf_counter() - start_s
        on_end(record)
