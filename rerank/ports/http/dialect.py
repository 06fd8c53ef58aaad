"""The protocol of a dialect: how one API writes requests, replies and errors in JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

from google.protobuf.message import Message
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from rerank.errors import InvalidRequest
from rerank.ports.http.problem import Problem
from rerank.service.requests import RerankRequest, SearchRequest

RequestT = TypeVar("RequestT", bound=BaseModel)
#: A request or a reply: a model of pydantic, or a message whose JSON form is that of protobuf.
JsonType: TypeAlias = type[BaseModel] | type[Message]

_UNKNOWN_FIELD = "unknown_field"


@dataclass(frozen=True, slots=True)
class Translated:
    """A request of the service, and the function that writes its ranking or search result as JSON."""

    request: RerankRequest | SearchRequest
    reply: Callable[[Any], bytes]


class Dialect(Protocol):
    """Translates between JSON of one API and the requests and rankings of the service.

    Attributes:
        passages_field: the name that the API has for the field `candidates`; a request that has it is in this dialect.
        name: what its requests hold, and whose API it is, such as "texts (TEI)".
        request: the type of its requests, for the description of the port.
        reply: the type of its replies.
    """

    passages_field: str
    name: str

    @property
    def request(self) -> JsonType: ...

    @property
    def reply(self) -> JsonType: ...

    def translate(self, body: Mapping[str, Any]) -> Translated:
        """The request of a body, which the service checks. Raises: InvalidRequest if its form is wrong."""
        ...

    def error(self, problem: Problem) -> Mapping[str, Any]:
        """The body of an error."""
        ...


def chosen(dialects: Sequence[Dialect], body: Mapping[str, Any]) -> Dialect:
    """The dialect of a body, if it may be in these. Raises: InvalidRequest if it is in none of several."""
    if len(dialects) == 1:
        return dialects[0]
    found = next((dialect for dialect in dialects if dialect.passages_field in body), None)
    if found is None:
        raise InvalidRequest("body", f"no API is recognised; send {choices(dialects)}")
    return found


def choices(dialects: Sequence[Dialect]) -> str:
    """The contents of requests of the dialects in words, such as "documents (Cohere, Jina) or texts (TEI)"."""
    *others, last = [dialect.name for dialect in dialects]
    return f"{', '.join(others)} or {last}" if others else last


def error_body(dialects: Iterable[Dialect], problem: Problem) -> dict[str, Any]:
    """The body of an error to a client of one of these APIs, who reads the fields of its own."""
    return {name: value for dialect in dialects for name, value in dialect.error(problem).items()}


class StrictModel(BaseModel):
    """Base class of requests in JSON: nothing is converted to another type, and unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _known_fields(cls, given: Any) -> Any:
        """Finds the first unknown field. Pydantic itself makes an error of each, and there may be thousands."""
        names = given if isinstance(given, Mapping) else ()
        unknown = next((name for name in names if name not in cls.model_fields), None)
        if unknown is not None:
            raise PydanticCustomError(_UNKNOWN_FIELD, "{name}", {"name": unknown})
        return given


def validated(kind: type[RequestT], body: Mapping[str, Any]) -> RequestT:
    """The request of this type.

    Raises:
        InvalidRequest: the first problem, with the path of the field. A list in a request stops at its first problem,
            which its type says with `FailFast`.
    """
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        if first["type"] == _UNKNOWN_FIELD:
            name = _path((*first["loc"], first["ctx"]["name"]))
            raise InvalidRequest(name, "this service does not know the field; leave it out") from error
        raise InvalidRequest(_path(first["loc"]), first["msg"].lower()) from error


def _path(location: tuple[int | str, ...]) -> str:
    """The path of a field, such as documents[3]; what follows an index names the alternatives of a union."""
    index = next((place for place, part in enumerate(location) if isinstance(part, int)), len(location))
    names = ".".join(str(part) for part in location[:index])
    return f"{names}[{location[index]}]" if index < len(location) else names


def to_json(reply: BaseModel) -> bytes:
    """The JSON of a reply, without the fields that are None."""
    return reply.model_dump_json(exclude_none=True).encode()
