"""Methods of protobuf services: bytes of a message in, bytes of a message out."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from grpc_health.v1 import health_pb2

from rerank.errors import InvalidRequest
from rerank.ports.health import HealthServicer
from rerank.protobuf.field_count import check_field_count
from rerank.protobuf.replies import list_models_response, rerank_response, search_response
from rerank.protobuf.requests import rerank_request, search_request
from rerank.reranking.reranker import AsyncReranker
from rerank.service.answer import Method, Respond
from rerank.service.call import CallRecord, OnEnd
from rerank.service.in_flight import SMALL_MESSAGE, CallsInFlight
from rerank.service.methods import RerankMethods, served_models
from rerank.service.requests import check_number_of_candidates
from rerank.v1 import rerank_pb2 as pb

log = logging.getLogger(__name__)

#: Makes the response message to a request message of the call of this record.
Run: TypeAlias = Callable[[Any, CallRecord], Awaitable[Message]]


class MessageMethods:
    """The methods of RerankService, which take and return its messages."""

    def __init__(self, reranker: AsyncReranker, calls: CallsInFlight) -> None:
        self._reranker, self._calls, self._methods = reranker, calls, RerankMethods(reranker, calls)

    async def rerank(self, message: pb.RerankRequest, record: CallRecord) -> pb.RerankResponse:
        """Rerank. Raises: RerankError."""
        check_number_of_candidates(message.candidates, self._calls.limits)
        is_large = message.ByteSize() > SMALL_MESSAGE
        request = await self._reranker.convert(rerank_request, message) if is_large else rerank_request(message)
        return rerank_response(await self._methods.rerank(request, record), message)

    async def search(self, message: pb.SearchRequest, record: CallRecord) -> pb.SearchResponse:
        """Search. Raises: RerankError."""
        return search_response(await self._methods.search(search_request(message), record), message)

    async def list_models(self, _: pb.ListModelsRequest, __: CallRecord) -> pb.ListModelsResponse:
        """ListModels."""
        return list_models_response(served_models(self._reranker))


def rerank_methods(reranker: AsyncReranker, calls: CallsInFlight, on_end: OnEnd) -> dict[str, Method]:
    """The unary methods of RerankService by their names."""
    methods = MessageMethods(reranker, calls)
    runs: dict[str, Run] = {"Rerank": methods.rerank, "Search": methods.search, "ListModels": methods.list_models}
    return protobuf_methods(pb.DESCRIPTOR.services_by_name["RerankService"], runs, calls, on_end)


def health_methods(health: HealthServicer, calls: CallsInFlight) -> dict[str, Method]:
    """The health check; its calls are logged at level DEBUG, because they come often."""

    async def check(message: health_pb2.HealthCheckRequest, _: CallRecord) -> Message:
        response: Message = await health.check(message)
        return response

    service = health_pb2.DESCRIPTOR.services_by_name["Health"]
    return protobuf_methods(service, {"Check": check}, calls, partial(log.debug, "%s"))


def protobuf_methods(
    service: ServiceDescriptor, runs: Mapping[str, Run], calls: CallsInFlight, on_end: OnEnd
) -> dict[str, Method]:
    """Methods of a service of protobuf by their names."""
    return {
        name: Method(name, _responding(parser(service.methods_by_name[name].input_type, calls), run), calls, on_end)
        for name, run in runs.items()
    }


def parser(kind: Descriptor, calls: CallsInFlight) -> Callable[[bytes], Any]:
    """Parses messages of a type, after their fields were counted. Raises: InvalidRequest."""
    message_type = message_factory.GetMessageClass(kind)

    def parse(message: bytes) -> Message:
        if len(message) > calls.limits.max_candidates:  # a field has at least a byte, a candidate may have several
            check_field_count(message, kind, calls.limits)
        try:
            return message_type.FromString(message)
        except DecodeError as error:
            raise InvalidRequest("request", f"the bytes are no message of this type: {error}") from error

    return parse


def _responding(parse: Callable[[bytes], Any], run: Run) -> Respond:
    async def respond(message: bytes | bytearray, record: CallRecord) -> bytes:
        response = await run(parse(bytes(message)), record)
        return response.SerializeToString()

    return respond
