"""The protocol of a dialect: how one API writes requests, replies and errors in JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import BaseModel, ValidationError

from rerank.errors import InvalidRequest
from rerank.http.problem import Problem
from rerank.v1 import rerank_pb2 as pb


@dataclass(frozen=True, slots=True)
class Translated:
    """A request as a message of the gRPC service, and the function that writes the service's response as JSON."""

    message: pb.RerankRequest | pb.SearchRequest
    reply: Callable[[Any], bytes]


class Dialect(Protocol):
    """Translates between JSON of one API and the messages of the gRPC service."""

    #: The name that the API has for the field `candidates`.
    passages_field: str

    def translate(self, body: Mapping[str, Any]) -> Translated:
        """The request as a message of the gRPC service. Raises: InvalidRequest."""
        ...

    def error(self, problem: Problem) -> Mapping[str, Any]:
        """The body of an error."""
        ...


def invalid(error: ValidationError) -> InvalidRequest:
    """The first problem that pydantic found in a request, with the path of the field."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    if first["type"] == "extra_forbidden":
        return InvalidRequest(_path(first["loc"]), "this service does not know the field; leave it out")
    return InvalidRequest(_path(first["loc"]), first["msg"].lower())


def _path(location: tuple[int | str, ...]) -> str:
    """The path of a field, such as documents[3]; what follows an index names the alternatives of a union."""
    index = next((place for place, part in enumerate(location) if isinstance(part, int)), len(location))
    names = ".".join(str(part) for part in location[:index])
    return f"{names}[{location[index]}]" if index < len(location) else names


def to_json(reply: BaseModel) -> bytes:
    """The JSON of a reply, without the fields that are None."""
    return reply.model_dump_json(exclude_none=True).encode()
