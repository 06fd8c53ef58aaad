"""The methods of RerankService: each validates its request, calls the reranker and converts the result."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import accumulate
from typing import Any, TypeAlias

from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message

from rerank.access.callers import Caller
from rerank.access.keys import KeyStore
from rerank.engine.request import RankRequest
from rerank.errors import InvalidRequest
from rerank.names import current_model_name
from rerank.reranker import AsyncReranker
from rerank.service import convert
from rerank.service.calls import SMALL_MESSAGE, CallRecord, CallsInFlight, Method, OnEnd, Respond
from rerank.types import RankOptions
from rerank.v1 import rerank_pb2 as pb

#: The response to a request of the call of this record.
Run: TypeAlias = Callable[[Any, CallRecord], Awaitable[Any]]


class RerankMethods:
    """Rerank, Search and ListModels over one reranker. Their exceptions are those of `rerank.errors`."""

    def __init__(self, reranker: AsyncReranker) -> None:
        self._reranker = reranker
        #: Runs the conversion of large requests, 50 ms for 16 MB, while other calls are served. On one thread, because
        #: several would keep the event loop from the interpreter for longer.
        self._submit = ThreadPoolExecutor(max_workers=1, thread_name_prefix="conversion").submit

    async def rerank(self, request: pb.RerankRequest, record: CallRecord) -> pb.RerankResponse:
        """Rerank. Raises: RerankError."""
        limits = self._reranker.config.limits
        if any(size > SMALL_MESSAGE for size in accumulate(len(c.text) + len(c.title) for c in request.candidates)):
            call = await asyncio.wrap_future(self._submit(convert.rerank_call, request, limits))
        else:
            call = convert.rerank_call(request, limits)
        self._check_models(call.options, record.caller)
        deadline = self._earlier(record.deadline)
        ranking = await self._reranker.rerank(
            call.query, call.candidates, call.options, deadline, caller=record.caller_name
        )
        return convert.rerank_response(ranking, call.return_passages, call.include_trace)

    async def search(self, request: pb.SearchRequest, record: CallRecord) -> pb.SearchResponse:
        """Search. Raises: RerankError."""
        call = convert.search_call(request, self._reranker.config.limits)
        self._check_models(call.options, record.caller)
        deadline = self._earlier(record.deadline)
        result = await self._reranker.search(
            call.query, call.first_stage, call.depth, call.options, deadline, call.feedback, record.caller_name
        )
        return convert.search_response(result, call.return_passages, call.include_trace)

    async def list_models(self, request: pb.ListModelsRequest, record: CallRecord) -> pb.ListModelsResponse:
        """ListModels."""
        index = self._reranker.index
        return convert.list_models_response(self._reranker.models(), index.manifest if index else None)

    def _earlier(self, deadline: float) -> float:
        """The earlier of the caller's deadline and the service's own limit."""
        return min(deadline, asyncio.get_running_loop().time() + self._reranker.config.limits.max_request_s)

    def _check_models(self, options: RankOptions, caller: Caller | None) -> None:
        """Raises: PermissionDenied if the caller's key does not allow the model or the preranker."""
        if caller is not None:
            names = [model.name for model in self._reranker.models()]  # the default one first
            model = current_model_name(options.model or names[0], names)
            caller.check_models([model, *filter(None, [options.preranker])], names)


def rerank_methods(reranker: AsyncReranker, calls: CallsInFlight, on_end: OnEnd) -> dict[str, Method]:
    """The methods of RerankService by their names. If `calls` has keys, holds requests to their tokens."""
    if calls.keys is not None:
        reranker.in_work = partial(_in_work, calls.keys, reranker)
    methods = RerankMethods(reranker)
    runs: dict[str, Run] = {"Rerank": methods.rerank, "Search": methods.search, "ListModels": methods.list_models}
    return protobuf_methods(pb.DESCRIPTOR.services_by_name["RerankService"], runs, calls, on_end)


def protobuf_methods(
    service: ServiceDescriptor, runs: Mapping[str, Run], calls: CallsInFlight, on_end: OnEnd
) -> dict[str, Method]:
    """Methods of a service of protobuf by their names: bytes of a message in, bytes of a message out."""
    return {
        name: Method(name, _responding(parser(service.methods_by_name[name].input_type, calls), run), calls, on_end)
        for name, run in runs.items()
    }


def parser(kind: Descriptor, calls: CallsInFlight) -> Callable[[bytes], Any]:
    """Parses messages of a type, after their fields were counted. Raises: InvalidRequest."""
    message_type = message_factory.GetMessageClass(kind)

    def parse(message: bytes) -> Message:
        if len(message) > calls.limits.max_candidates:  # a field has at least a byte, a candidate may have several
            convert.check_field_count(message, kind, calls.limits)
        try:
            return message_type.FromString(message)
        except DecodeError as error:
            raise InvalidRequest("request", f"the bytes are no message of this type: {error}") from error

    return parse


@contextmanager
def _in_work(keys: KeyStore, reranker: AsyncReranker, request: RankRequest) -> Iterator[None]:
    """Counts the tokens of a request until the block ends. Raises: Overloaded if the caller's key allows no more."""
    caller = keys.caller(request.caller)
    if caller is None or caller.limits.max_queue_tokens is None:
        yield
        return
    with caller.queueing(reranker.engine.expected_tokens(request)):
        yield


def _responding(parse: Callable[[bytes], Any], run: Run) -> Respond:
    async def respond(message: bytes | bytearray, record: CallRecord) -> bytes:
        record.request = parse(bytes(message))
        record.response = await run(record.request, record)
        return bytes(record.response.SerializeToString())

    return respond
