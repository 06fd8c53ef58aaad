"""The base class of reranking APIs: each parses its requests, and renders its replies and errors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

from google.protobuf.message import Message
from pydantic import BaseModel

from rerank.ports.http.problem import Problem
from rerank.service.requests import RerankRequest, SearchRequest
from rerank.types import Trace

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
        """Makes the request of a body; the service checks its values. Raises: InvalidRequest if its form is wrong."""

    def error(self, problem: Problem) -> Mapping[str, Any]:
        """Makes the body of an error. This one has the text under the names that most clients look for."""
        return {"error": problem.message, "message": problem.message, "detail": problem.message}


class Usage(BaseModel):
    """Tokens that the model read, summed over all windows."""

    prompt_tokens: int
    total_tokens: int

    @classmethod
    def of(cls, trace: Trace) -> Self:
        return cls(prompt_tokens=trace.tokens, total_tokens=trace.tokens)


def to_json(reply: BaseModel) -> bytes:
    """The JSON of a reply, without the fields that are None. Numbers of type float have a decimal point."""
    return reply.model_dump_json(exclude_none=True).encode()
