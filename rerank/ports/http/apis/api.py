"""The base class of the reranking APIs over HTTP, and the options and documents of the APIs of other services."""

from __future__ import annotations

import reprlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from google.protobuf.message import Message
from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from rerank.errors import InvalidRequest
from rerank.names import did_you_mean
from rerank.ports.http.problem import Problem
from rerank.protobuf.fields import unread_candidate_fields
from rerank.service.requests import RerankRequest, SearchRequest
from rerank.types import Passage, Query, Ranking, RankOptions
from rerank.util.validation import plain_words

#: A request or a reply: a model of pydantic, or a message with the JSON form of protobuf.
JsonType: TypeAlias = type[BaseModel] | type[Message]
RequestT = TypeVar("RequestT", bound=BaseModel)

_UNKNOWN_FIELD = "unknown_field"
#: The largest number in the messages of the service.
_INT32_MAX = 2**31 - 1
#: Fields that programs send to other services. They do not choose the order, so requests with them are answered, and
#: the caller is told that they have no effect.
_NO_EFFECT = frozenset({
    "batch_size", "cache_salt", "encoding_format", "input_type", "max_tokens_per_query", "metadata", "overlap_tokens",
    "parameters", "priority", "property", "request_id", "return_len", "truncate", "truncate_prompt_tokens",
    "truncation", "truncation_direction", "truncation_side", "user",
})  # fmt: skip


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


def to_json(kind: type[BaseModel], reply: Any) -> bytes:
    """The JSON of a reply of a type, without the fields that are None. Numbers of type float have a decimal point."""
    return kind.model_validate(reply).model_dump_json(exclude_none=True).encode()


#: Field of a request → the API of the requests that have it. A path with one API reads all requests as this API's.
ByField: TypeAlias = Mapping[str, RerankAPI]


def chosen(apis: ByField, body: Mapping[str, Any]) -> RerankAPI:
    """The API of a body, by the first field that the body has. Raises: InvalidRequest if it has none."""
    if len(apis) == 1:
        return next(iter(apis.values()))
    found = next((api for field, api in apis.items() if field in body), None)
    if found is None:
        raise InvalidRequest("body", f"no API has a request like this; send {choices(apis)}")
    return found


def choices(apis: ByField) -> str:
    """The contents of requests in words, such as "documents (Cohere, Jina) or texts (TEI)"."""
    *others, last = [api.name for api in apis.values()]
    return f"{', '.join(others)} or {last}" if others else last


def error_body(apis: Iterable[RerankAPI], problem: Problem) -> dict[str, Any]:
    """The body of an error with the fields of each of these APIs; a client reads the fields of the one it speaks."""
    return {name: value for api in apis for name, value in api.error(problem).items()}


def _from_text(value: Any) -> Any:
    """Some programs send "true" and "false" as texts."""
    return {"true": True, "false": False}.get(value.lower(), value) if isinstance(value, str) else value


#: A field that is true or false; None: not given.
Flag: TypeAlias = Annotated[bool | None, BeforeValidator(_from_text)]
#: The number of results.
TopN: TypeAlias = Annotated[int | None, Field(ge=0, description="Number of results; none or 0: all.")]


Document: TypeAlias = str | dict[str, Any]
Texts: TypeAlias = Annotated[list[str], FailFast()]
Documents: TypeAlias = Annotated[
    list[Document], FailFast(), Field(description='Texts, or objects with the fields of "rank_fields".')
]
#: Fields of documents with an image, as its address or its content, in the APIs of Jina and Cohere.
_IMAGES = ("image", "image_url")
#: The service looks each of these fields up in every document.
_MAX_RANK_FIELDS = 100


def _few(names: Any) -> Any:
    """Counts the fields before pydantic looks at them, which makes an error of each that is not a text."""
    if isinstance(names, list) and len(names) > _MAX_RANK_FIELDS:
        message = f"{len(names)} fields exceed the limit of {_MAX_RANK_FIELDS}; send at most {_MAX_RANK_FIELDS}"
        raise PydanticCustomError("too_long", message)
    return names


RankFields: TypeAlias = Annotated[
    list[str] | None,
    Field(min_length=1, description='Fields of documents that are ranked, 100 at most; none: "text".'),
    BeforeValidator(_few),
]


class Options(BaseModel):
    """Fields that requests of every API may have.

    Nothing is converted to another type, and unknown fields are refused unless null.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _known_fields(cls, given: Any) -> Any:
        """Finds the first unknown field. Pydantic itself makes an error of each, and there may be thousands."""
        if not isinstance(given, Mapping):
            return given
        fields = cls.model_fields
        for name, value in given.items():
            if name not in fields and name not in _NO_EFFECT and value is not None:
                raise PydanticCustomError(_UNKNOWN_FIELD, "{name}", {"name": name, "hint": did_you_mean(name, fields)})
        return {name: value for name, value in given.items() if name in fields}

    model: Annotated[str | None, Field(description="A model of the service; none: the default model.")] = None
    instruction: Annotated[
        str | None, Field(description="What is relevant, in words; refused by models that read no instruction.")
    ] = None
    ordered: Annotated[
        Flag,
        Field(
            description="true: the passages are in the order of a first stage, best first, and this order counts. "
            "Otherwise it does not, and equal passages get equal scores."
        ),
    ] = None
    min_relevance: Annotated[
        float | None, Field(description="Least relevance of a result, 0 to 1; refused by models without.")
    ] = None
    score_threshold: Annotated[
        float | None, Field(ge=0, le=1, description="The same, but without effect on models that give no relevance.")
    ] = None
    return_all: Annotated[
        Flag, Field(description="true: every passage is a result, whatever top_n and the threshold are.")
    ] = None
    relative_scores: Annotated[
        Flag, Field(description="true: scores of this request only, although the model gives a relevance.")
    ] = None
    allow_partial: Annotated[
        Flag, Field(description="true: at the deadline, the best order so far is the answer, not an error.")
    ] = None
    on_failure: Annotated[
        Literal["error", "first_stage", "first-stage"] | None,
        Field(
            description="first_stage: if the service fails to rank, the answer is the best order so far, or the first "
            "stage's, and X-Rerank-Failure names the failure. Results without relevance then have the score 0 "
            "and ranked: false. None: error."
        ),
    ] = None

    def parsed(
        self,
        query: str,
        candidates: Sequence[Passage],
        render: Callable[[Ranking, Sequence[str]], bytes],
        top_n: int | None = None,
        max_chunks_per_doc: int = 0,
    ) -> ParsedRequest:
        """The request of the service.

        Args:
            query: its text.
            candidates: the passages.
            render: makes the reply.
            top_n: number of results; None or 0: all.
            max_chunks_per_doc: number of parts of a document; 0: the default.

        Raises: InvalidRequest for two thresholds.
        """
        if self.min_relevance is not None and self.score_threshold is not None:
            raise InvalidRequest("score_threshold", "min_relevance is given, too, and means the same; send one of them")
        threshold = self.score_threshold if self.min_relevance is None else self.min_relevance
        options = RankOptions(
            model=self.model or "",
            top_n=0 if self.return_all else min(top_n or 0, _INT32_MAX),
            ordered=bool(self.ordered),
            min_relevance=None if self.return_all else threshold,
            max_chunks_per_doc=min(max_chunks_per_doc, _INT32_MAX),
            allow_partial=bool(self.allow_partial),
            on_failure=self.on_failure or "",
        )
        request = RerankRequest(Query(query, instruction=self.instruction or ""), candidates, options)
        best_effort = ["max_chunks_per_doc", *(["min_relevance"] if self.score_threshold is not None else [])]
        return ParsedRequest(request, render, best_effort)


def fields_without_effect(kind: type[Any], body: Mapping[str, Any]) -> list[str]:
    """The fields of a valid body, and of its candidates, that its type accepts and does not use."""
    if issubclass(kind, Message):
        return unread_candidate_fields(kind, body)
    return sorted(name for name in _NO_EFFECT - kind.model_fields.keys() if body.get(name) is not None)


def validated(kind: type[RequestT], body: Mapping[str, Any]) -> RequestT:
    """The request of this type.

    Raises:
        InvalidRequest: names the first problem, with the path of the field. Lists in a request have `FailFast`, so that
            pydantic does not look for more.
    """
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        if first["type"] == _UNKNOWN_FIELD:
            name, hint = ".".join(filter(None, (_path(first["loc"]), first["ctx"]["name"]))), first["ctx"]["hint"]
            way_out = hint or " GET /openapi.json lists the fields that each path reads"
            raise InvalidRequest(name, f"this service does not know the field;{way_out}") from error
        raise InvalidRequest(_path(first["loc"]), plain_words(first["msg"])) from error


def _path(location: tuple[int | str, ...]) -> str:
    """The path of a field, such as documents[3]. What follows an index names the alternatives of a union."""
    index = next((index for index, part in enumerate(location) if isinstance(part, int)), len(location))
    names = ".".join(str(part) for part in location[:index])
    return f"{names}[{location[index]}]" if index < len(location) else names


def candidates_of(
    documents: Sequence[Document], fields: Sequence[str] | None = None, name: str = "documents"
) -> list[Passage]:
    """The documents with their positions as doc_ids. A text is the fields in the given order, one per line.

    Without `fields`, it is the text of the field `text`, with the title.

    Args:
        name: the field of the request with the documents; errors use it.

    Raises:
        InvalidRequest: an object has none of the fields, or one of them is not a text.
    """
    return [_candidate(document, f"{name}[{index}]", index, fields) for index, document in enumerate(documents)]


def _candidate(document: Document, path: str, index: int, fields: Sequence[str] | None) -> Passage:
    if isinstance(document, str):
        return Passage(str(index), document)
    values = {name: document[name] for name in fields or ("text",) if name in document}
    if not values:
        wanted = " or ".join(fields or ("text",))
        is_image = any(name in document for name in _IMAGES)
        way_out = "images are not read, so send a text" if is_image else "name its texts in rank_fields"
        raise InvalidRequest(path, f"the object has no field {wanted}; {way_out}")
    if other := next((name for name, value in values.items() if not isinstance(value, str)), None):
        problem = f"{reprlib.repr(values[other])} is not a text; send it as a text, or name other fields in rank_fields"
        raise InvalidRequest(f"{path}.{other}", problem)
    title = "" if fields else document.get("title") or ""
    if not isinstance(title, str):
        raise InvalidRequest(f"{path}.title", "it is not a text; send a text, or leave it out")
    return Passage(str(index), "\n".join(values.values()), title=title)


def as_object(document: Document) -> dict[str, Any]:
    """A document as replies return it: as it was sent, or {"text"} for a text."""
    return {"text": document} if isinstance(document, str) else document
