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
    """A request of an API as one of the service, and the function that renders its reply.

    Attributes:
        request: what the service is asked.
        render: takes the ranking or the search result, and warnings for the caller; returns JSON.
        best_effort: names of options that are followed as far as this service can, with a warning. Others are refused
            if it cannot follow them.
    """

    request: RerankRequest | SearchRequest
    render: Callable[[Any, Sequence[str]], bytes]
    best_effort: Collection[str] = ()


class RerankAPI(ABC):
    """The JSON of a reranking API: makes requests of the service from it, and replies from rankings.

    Attributes:
        passages_field: the API's name for the field `candidates`; errors use it.
        name: the contents of a request, and the API, such as "texts (TEI)".
        request: the type of requests, for the description of the port.
        reply: the type of replies, for the same.
    """

    passages_field: str
    name: str
    request: JsonType
    reply: JsonType

    @abstractmethod
    def parse(self, body: Mapping[str, Any]) -> ParsedRequest:
        """The request in a body; the service checks its values. Raises: InvalidRequest if its form is wrong."""

    @abstractmethod
    def fields_without_effect(self, body: Mapping[str, Any]) -> list[str]:
        """The fields of a valid body, and of its candidates, that the API accepts and does not use."""

    def error(self, problem: Problem) -> Mapping[str, Any]:
        """The body of an error. By default it has the message under the names that most clients read."""
        return {"error": problem.message, "message": problem.message, "detail": problem.message}


#: Field of a request → the API of the requests that have it. A path with one API reads all requests as this API's.
ByField: TypeAlias = Mapping[str, RerankAPI]


def chosen(apis: ByField, body: Mapping[str, Any]) -> RerankAPI:
    """The API of a body, by the first field that the body has. Raises: InvalidRequest if it has none."""
    for field, api in apis.items():
        if field in body or len(apis) == 1:
            return api
    raise InvalidRequest("body", f"no API has a request like this; send {choices(apis)}")


def choices(apis: ByField) -> str:
    """The contents of requests in words, such as "documents (Cohere, Jina) or texts (TEI)"."""
    *others, last = [api.name for api in apis.values()]
    return f"{', '.join(others)} or {last}" if others else last


def error_body(apis: Iterable[RerankAPI], problem: Problem) -> dict[str, Any]:
    """The body of an error with the fields of each of these APIs; a client reads the fields of the one it speaks."""
    return {name: value for api in apis for name, value in api.error(problem).items()}
