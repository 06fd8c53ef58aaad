"""Methods of protobuf services: bytes of a message in, bytes of a message out."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar, cast

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError, Message
from grpc_health.v1 import health_pb2

from rerank.errors import InvalidRequest
from rerank.ports.health import Health
from rerank.protobuf.field_count import check_field_count
from rerank.protobuf.replies import list_models_response, rerank_response, search_response
from rerank.protobuf.requests import rerank_request, search_request
from rerank.reranking.reranker import AsyncReranker
from rerank.service.answer import Method
from rerank.service.call import CallContext, OnEnd, ReadCall, Reply
from rerank.service.in_flight import SMALL_MESSAGE, CallsInFlight
from rerank.service.methods import RerankMethods
from rerank.service.requests import check_number_of_candidates
from rerank.v1 import rerank_pb2 as pb

log = logging.getLogger(__name__)

#: Bytes of a message of the health check and of reflection, which has the name of a service, a symbol or a file.
_MAX_SHORT_BYTES = 4096

M = TypeVar("M", bound=Message)


def rerank_methods(reranker: AsyncReranker, calls: CallsInFlight, on_end: OnEnd) -> dict[str, Method]:
    """The methods of RerankService by their names: they read its messages, and answer with the bytes of others."""
    methods = RerankMethods(reranker, calls)

    async def rerank(message: pb.RerankRequest) -> ReadCall:
        check_number_of_candidates(message.candidates, calls.limits)
        is_large = message.ByteSize() > SMALL_MESSAGE
        request = await reranker.convert(rerank_request, message) if is_large else rerank_request(message)

        async def run(context: CallContext) -> Reply:
            ranking = await methods.rerank(request, context)
            return Reply(rerank_response(ranking, message).SerializeToString(), ranking)

        return ReadCall(request, run)

    async def search(message: pb.SearchRequest) -> ReadCall:
        request = search_request(message)

        async def run(context: CallContext) -> Reply:
            result = await methods.search(request, context)
            return Reply(search_response(result, message).SerializeToString(), result)

        return ReadCall(request, run)

    async def list_models(_: pb.ListModelsRequest) -> ReadCall:
        async def run(_: CallContext) -> Reply:
            return Reply(list_models_response(reranker).SerializeToString())

        return ReadCall(None, run)

    return {
        "Rerank": _method("Rerank", pb.RerankRequest, rerank, calls, on_end),
        "Search": _method("Search", pb.SearchRequest, search, calls, on_end),
        "ListModels": _method("ListModels", pb.ListModelsRequest, list_models, calls, on_end),
    }


def health_methods(health: Health, calls: CallsInFlight) -> dict[str, Method]:
    """The health check; its calls are logged at level DEBUG, because they come often."""

    async def check(message: bytes | bytearray) -> ReadCall:
        request = short_message(health_pb2.HealthCheckRequest, message)

        async def run(_: CallContext) -> Reply:
            return Reply(health.check(request).SerializeToString())

        return ReadCall(None, run)

    return {"Check": Method("Check", check, calls, partial(log.debug, "%s"))}


def _method(
    name: str, kind: type[M], read: Callable[[M], Awaitable[ReadCall]], calls: CallsInFlight, on_end: OnEnd
) -> Method:
    """A method whose messages are of a type."""

    async def read_bytes(message: bytes | bytearray) -> ReadCall:
        if len(message) > calls.limits.max_candidates:  # a field has at least a byte, a candidate may have several
            check_field_count(bytes(message), cast(Descriptor, kind.DESCRIPTOR), calls.limits)
        return await read(_parsed(kind, message))

    return Method(name, read_bytes, calls, on_end)


def short_message(kind: type[M], message: bytes | bytearray) -> M:
    """Parses a message that holds no more than a name. Raises: InvalidRequest."""
    if len(message) > _MAX_SHORT_BYTES:
        problem = f"{len(message)} bytes exceed the limit of {_MAX_SHORT_BYTES}; send the name of a service or symbol"
        raise InvalidRequest("request", problem)
    return _parsed(kind, message)


def _parsed(kind: type[M], message: bytes | bytearray) -> M:
    try:
        return kind.FromString(bytes(message))
    except DecodeError as error:
        raise InvalidRequest("request", f"the bytes are not a message of this type: {error}") from error
