"""The JSON forms of the gRPC methods Rerank and Search: protobuf's JSON mapping with the names of the .proto file.

Strategies, first stages and feedback methods may have the names that they have in the command line.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from google.protobuf import json_format
from google.protobuf.message import Message

from rerank.errors import InvalidRequest
from rerank.ports.http.apis.api import ParsedRequest, RerankAPI
from rerank.ports.http.problem import Problem
from rerank.protobuf.fields import with_enum_values
from rerank.protobuf.messages import rerank_request, rerank_response, search_request, search_response
from rerank.v1 import rerank_pb2 as pb

M = TypeVar("M", pb.RerankRequest, pb.SearchRequest)


class _NativeAPI(RerankAPI):
    reply, passages_field = pb.RerankResponse, "candidates"

    def error(self, problem: Problem) -> Mapping[str, Any]:
        """Returns the google.rpc.Status that a gRPC client gets."""
        return problem.as_json


class NativeRerank(_NativeAPI):
    """Rerank in the JSON form of its messages."""

    name, request = "candidates (gRPC's Rerank)", pb.RerankRequest

    def parse(self, body: Mapping[str, Any]) -> ParsedRequest:
        message = _message(pb.RerankRequest, body)
        return ParsedRequest(rerank_request(message), lambda ranking, _: _to_json(rerank_response(ranking, message)))


class NativeSearch(_NativeAPI):
    """Search in the JSON form of its messages."""

    name, request = "a query to the index (gRPC's Search)", pb.SearchRequest

    def parse(self, body: Mapping[str, Any]) -> ParsedRequest:
        message = _message(pb.SearchRequest, body)
        return ParsedRequest(search_request(message), lambda result, _: _to_json(search_response(result, message)))


def _message(kind: type[M], body: Mapping[str, Any]) -> M:
    """The message of a body. Raises: InvalidRequest."""
    message = kind()
    try:
        json_format.ParseDict(with_enum_values(kind, body), message)
    except OverflowError as error:
        field = next(path for path, number in _numbers(body) if abs(number) > sys.float_info.max)
        raise InvalidRequest(field, "the number is too large for any field; send a smaller one") from error
    except (json_format.ParseError, ValueError, TypeError, RecursionError) as error:
        raise InvalidRequest("request", f"{error}; see the fields of {kind.DESCRIPTOR.full_name}") from error
    return message


def _numbers(value: object, path: str = "") -> Iterator[tuple[str, float]]:
    """Every number of a JSON value with its path, such as candidates[0].first_stage_score."""
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
