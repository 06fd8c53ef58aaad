"""The methods of protobuf services, for the ports whose calls are messages: gRPC, and Ray Serve's."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeAlias, TypeVar, cast

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError, Message
from grpc_health.v1 import health_pb2

from rerank.config import Limits
from rerank.errors import InvalidRequest
from rerank.ports.health import Health
from rerank.protobuf.field_count import check_field_count
from rerank.protobuf.replies import list_models_response, rerank_response, search_response
from rerank.protobuf.requests import rerank_request, search_request
from rerank.reranking.reranker import AsyncReranker
from rerank.service.limits import SMALL_MESSAGE, CallsInFlight, PortCall
from rerank.service.methods import RerankMethods
from rerank.service.record import OnEnd
from rerank.service.requests import check_number_of_candidates
from rerank.v1 import rerank_pb2 as pb

log = logging.getLogger(__name__)

#: Bytes of a message of the health check and of reflection, which has the name of a service, a symbol or a file.
_MAX_SHORT_BYTES = 4096

M = TypeVar("M", bound=Message)
#: Answers a call with the bytes of a message. Raises: RerankError; CancelledError, the client has hung up.
MessageMethod: TypeAlias = Callable[[PortCall], Awaitable[bytes]]


def rerank_methods(reranker: AsyncReranker, calls: CallsInFlight, on_end: OnEnd) -> dict[str, MessageMethod]:
    """The methods of RerankService by their names."""
    methods, limits = RerankMethods(reranker, calls), calls.limits

    async def rerank(port: PortCall) -> bytes:
        with calls.enter(port, "Rerank", on_end) as call:
            message = _counted_message(pb.RerankRequest, await call.receive(), limits)
            check_number_of_candidates(message.candidates, limits)
            is_large = call.size > SMALL_MESSAGE
            request = await reranker.convert(rerank_request, message) if is_large else rerank_request(message)
            call.request = request
            call.result = ranking = await methods.rerank(request, call)
            return call.reply(rerank_response(ranking, message).SerializeToString())

    async def search(port: PortCall) -> bytes:
        with calls.enter(port, "Search", on_end) as call:
            message = _counted_message(pb.SearchRequest, await call.receive(), limits)
            call.request = request = search_request(message)
            call.result = result = await methods.search(request, call)
            return call.reply(search_response(result, message).SerializeToString())

    async def list_models(port: PortCall) -> bytes:
        with calls.enter(port, "ListModels", on_end) as call:
            _counted_message(pb.ListModelsRequest, await call.receive(), limits)
            return call.reply(list_models_response(reranker).SerializeToString())

    return {"Rerank": rerank, "Search": search, "ListModels": list_models}


def health_methods(health: Health, calls: CallsInFlight) -> dict[str, MessageMethod]:
    """The health check; its calls are logged at level DEBUG, because they come often."""

    async def check(port: PortCall) -> bytes:
        with calls.enter(port, "Check", partial(log.debug, "%s")) as call:
            message = short_message(health_pb2.HealthCheckRequest, await call.receive())
            return call.reply(health.check(message).SerializeToString())

    return {"Check": check}


def _counted_message(kind: type[M], message: bytes | bytearray, limits: Limits) -> M:
    """Parses a message after its fields were counted. Raises: InvalidRequest."""
    if len(message) > limits.max_candidates:  # a field has at least a byte, a candidate may have several
        check_field_count(bytes(message), cast(Descriptor, kind.DESCRIPTOR), limits)
    return _message(kind, message)


def short_message(kind: type[M], message: bytes | bytearray) -> M:
    """Parses a message that holds no more than a name. Raises: InvalidRequest."""
    if len(message) > _MAX_SHORT_BYTES:
        problem = f"{len(message)} bytes exceed the limit of {_MAX_SHORT_BYTES}; send the name of a service or symbol"
        raise InvalidRequest("request", problem)
    return _message(kind, message)


def _message(kind: type[M], message: bytes | bytearray) -> M:
    try:
        return kind.FromString(bytes(message))
    except DecodeError as error:
        raise InvalidRequest("request", f"the bytes are not a message of this type: {error}") from error
