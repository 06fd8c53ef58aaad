"""The base class of dialects: each translates the requests, replies and errors of one API."""

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
class Translated:
    """The request of the service, and the function that makes its reply.

    Attributes:
        request: what the service is asked.
        reply: takes the ranking or the search result, and warnings for the caller; returns JSON.
        best_effort: names of options that are followed as far as this service can, with a warning. Others are refused
            if it cannot follow them.
    """

    request: RerankRequest | SearchRequest
    reply: Callable[[Any, Sequence[str]], bytes]
    best_effort: Collection[str] = ()


class Dialect(ABC):
    """Translates between the JSON of one API and the requests and rankings of the service.

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
    def translate(self, body: Mapping[str, Any]) -> Translated:
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
