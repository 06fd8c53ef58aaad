"""The base class of the reranking APIs over HTTP, and the choice of one by the fields of a request."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from google.protobuf.message import Message
from pydantic import BaseModel

from rerank.errors import InvalidRequest
from rerank.ports.http.problem import Problem
from rerank.service.requests import RerankRequest, SearchRequest

#: A request or a reply: a model of pydantic, or a message with the JSON form of protobuf.
JsonType: TypeAlias = type[BaseModel] | type[Message]


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """A request of an API, converted to a request of the service, and the function that renders its reply.

    Attributes:
        request: the request of the service.
        render: takes the ranking or the search result, and warnings for the caller; returns JSON.
        best_effort: names of options that the service follows as far as it can, with a warning. If it cannot follow
            another option, it refuses the request.
    """

    request: RerankRequest | SearchRequest
    render: Callable[[Any, Sequence[str]], bytes]
    best_effort: Collection[str] = ()


class RerankAPI(ABC):
    """The JSON of a reranking API: converts its requests to requests of the service, and rankings to its replies.

    Attributes:
        passages_field: the API's name for the field `candidates`; errors use it.
        name: the contents of a request, and the API, such as "texts (TEI)".
        request: the type of requests, for the description of the port.
        reply: the type of replies, for the description of the port.
    """

    passages_field: str
    name: str
    request: JsonType
    reply: JsonType

    @abstractmethod
    def parse(self, body: Mapping[str, Any]) -> ParsedRequest:
        """Returns the request in a body; the service checks its values. Raises: InvalidRequest if its form is wrong."""

    @abstractmethod
    def fields_without_effect(self, body: Mapping[str, Any]) -> list[str]:
        """Returns the fields of a valid body, and of its candidates, that the API accepts but does not use."""

    def error(self, problem: Problem) -> Mapping[str, Any]:
        """Returns the body of an error. By default, it has the message under the names that most clients read."""
        return {"error": problem.message, "message": problem.message, "detail": problem.message}


#: Field of a request → the API of requests that have this field. If a path has one API, all its requests belong to it.
ByField: TypeAlias = Mapping[str, RerankAPI]


def chosen(apis: ByField, body: Mapping[str, Any]) -> RerankAPI:
    """Returns the API of the first field that a body has. Raises: InvalidRequest if the body has none of the fields."""
    for field, api in apis.items():
        if field in body or len(apis) == 1:
            return api
    raise InvalidRequest("body", f"no API has a request like this; send {choices(apis)}")


def choices(apis: ByField) -> str:
    """Returns the contents of requests in words, such as "documents (Cohere, Jina) or texts (TEI)"."""
    *others, last = [api.name for api in apis.values()]
    return f"{', '.join(others)} or {last}" if others else last


def error_body(apis: Iterable[RerankAPI], problem: Problem) -> dict[str, Any]:
    """Returns the body of an error with the fields of all these APIs. A client reads the fields of its own API."""
    return {name: value for api in apis for name, value in api.error(problem).items()}
