"""The JSON forms of the gRPC methods Rerank and Search: protobuf's JSON mapping with the names of the .proto file.

Strategies, first stages and feedback methods may have the names that they have in the command line.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import Message

from rerank.errors import InvalidRequest
from rerank.ports.http.apis.api import ParsedRequest, RerankAPI
from rerank.ports.http.problem import Problem
from rerank.protobuf.fields import unread_candidate_fields, with_enum_values
from rerank.protobuf.messages import rerank_request, rerank_response, search_request, search_response
from rerank.service.requests import RerankRequest, SearchRequest
from rerank.v1 import rerank_pb2 as pb


class NativeAPI(RerankAPI):
    """A gRPC method in the JSON form of its messages.

    Args:
        name: the contents of a request, and the method, such as "candidates (gRPC's Rerank)".
        request: the type of the method's request.
        read: message of the request → request of the service.
        write: (answer of the service, message of the request) → message of the reply.
    """

    reply, passages_field = pb.RerankResponse, "candidates"
    request: type[Message]

    def __init__(
        self,
        name: str,
        request: type[Message],
        read: Callable[[Any], RerankRequest | SearchRequest],
        write: Callable[[Any, Any], Message],
    ) -> None:
        self.name, self.request = name, request
        self._read, self._write = read, write

    def parse(self, body: Mapping[str, Any]) -> ParsedRequest:
        message = _filled(self.request(), body)
        return ParsedRequest(self._read(message), lambda answer, _: _to_json(self._write(answer, message)))

    def fields_without_effect(self, body: Mapping[str, Any]) -> list[str]:
        return unread_candidate_fields(self.request, body)

    def error(self, problem: Problem) -> Mapping[str, Any]:
        """Returns the google.rpc.Status that a gRPC client gets."""
        return problem.as_json


RERANK = NativeAPI("candidates (gRPC's Rerank)", pb.RerankRequest, rerank_request, rerank_response)
SEARCH = NativeAPI("a query to the index (gRPC's Search)", pb.SearchRequest, search_request, search_response)


def _filled(message: Message, body: Mapping[str, Any]) -> Message:
    """Returns the message with the fields of a body. Raises: InvalidRequest if the body does not fit."""
    try:
        json_format.ParseDict(with_enum_values(type(message), body), message)
    except OverflowError as error:
        field = next(path for path, number in _numbers(body) if abs(number) > sys.float_info.max)
        raise InvalidRequest(field, "the number is too large for any field; send a smaller one") from error
    except (json_format.ParseError, ValueError, TypeError, RecursionError) as error:
        raise InvalidRequest("request", f"{error}; see the fields of {message.DESCRIPTOR.full_name}") from error
    return message


def _numbers(value: object, path: str = "") -> Iterator[tuple[str, float]]:
    """Yields every number of a JSON value with its path, such as candidates[0].first_stage_score."""
    match value:
        case dict():
            for name, part in value.items():
                yield from _numbers(part, f"{path}.{name}" if path else name)
        case list():
            for index, part in enumerate(value):
                yield from _numbers(part, f"{path}[{index}]")
        case int() | float():
            yield path, value


def _to_json(response: Message) -> bytes:
    return json_format.MessageToJson(
        response, preserving_proto_field_name=True, always_print_fields_with_no_presence=True, indent=None
    ).encode()
