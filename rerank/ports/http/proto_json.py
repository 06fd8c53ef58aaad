"""The JSON forms of the gRPC methods Rerank and Search: protobuf's JSON mapping, with the names of the .proto file.

Strategies, first stages and feedback methods may also have their names in the command line.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import Message

from rerank.errors import InvalidRequest
from rerank.ports.http.dialect import Translated
from rerank.ports.http.problem import Problem
from rerank.service.request_fields import with_enum_values
from rerank.v1 import rerank_pb2 as pb


class ProtoJsonDialect:
    """The dialect of this service.

    Args:
        request: the type of the request.
        reply: the type of the reply.
        name: see Dialect.
    """

    passages_field = "candidates"

    def __init__(
        self, request: type[pb.RerankRequest] | type[pb.SearchRequest], reply: type[Message], name: str
    ) -> None:
        self.request, self.reply, self.name = request, reply, name

    def translate(self, body: Mapping[str, Any]) -> Translated:
        message = self.request()
        try:
            json_format.ParseDict(with_enum_values(self.request, body), message)
        except OverflowError as error:
            field = next(path for path, number in _numbers(body) if abs(number) > sys.float_info.max)
            raise InvalidRequest(field, "the number is too large for any field; send a smaller one") from error
        except (json_format.ParseError, ValueError, TypeError, RecursionError) as error:
            raise InvalidRequest(
                "request", f"{error}; see the fields of {self.request.DESCRIPTOR.full_name}"
            ) from error
        return Translated(message, _reply)

    def error(self, problem: Problem) -> Mapping[str, Any]:
        """A google.rpc.Status, as a gRPC client gets it."""
        return problem.as_json


def _numbers(value: object, path: str = "") -> Iterator[tuple[str, float]]:
    """Every number of a JSON value with its path, such as candidates[0].first_stage_score."""
    match value:
        case dict():
            for name, each in value.items():
                yield from _numbers(each, f"{path}.{name}" if path else name)
        case list():
            for place, each in enumerate(value):
                yield from _numbers(each, f"{path}[{place}]")
        case int() | float():
            yield path, value


def _reply(response: Message) -> bytes:
    return json_format.MessageToJson(
        response, preserving_proto_field_name=True, always_print_fields_with_no_presence=True, indent=None
    ).encode()
