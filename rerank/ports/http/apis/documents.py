"""The base class of APIs whose requests have a query and documents. Class attributes state the names of its fields."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    ValidationError,
    WithJsonSchema,
    create_model,
    model_validator,
)
from pydantic_core import PydanticCustomError

from rerank.errors import InvalidRequest
from rerank.names import did_you_mean
from rerank.ports.http.apis.api import ParsedRequest, RerankAPI
from rerank.ports.http.apis.scores import Scored, scored
from rerank.service.requests import RerankRequest
from rerank.types import Passage, Query, Ranking, RankOptions
from rerank.util.validation import plain_words

#: Type of pydantic's error about an unknown field.
_UNKNOWN_FIELD = "unknown_field"
#: Largest value of an int32, the type of numbers in the messages of the service.
_INT32_MAX = 2**31 - 1
#: Fields that programs send to other services. They do not choose the order, so requests with them are answered, and
#: a warning says that they have no effect.
_NO_EFFECT = frozenset({
    "batch_size", "cache_salt", "encoding_format", "input_type", "max_tokens_per_query", "metadata", "overlap_tokens",
    "parameters", "priority", "property", "request_id", "return_len", "truncate", "truncate_prompt_tokens",
    "truncation", "truncation_direction", "truncation_side", "user",
})  # fmt: skip


def _bool_from_text(value: Any) -> Any:
    """Reads "true" and "false", which some programs send as texts."""
    return {"true": True, "false": False}.get(value.lower(), value) if isinstance(value, str) else value


#: A field that is true or false; None: not given.
Flag: TypeAlias = Annotated[bool | None, BeforeValidator(_bool_from_text)]
#: The number of results.
TopN: TypeAlias = Annotated[int | None, Field(ge=0, description="Number of results; none or 0: all.")]
#: The schema of a document in /openapi.json. It names fields so that generators of clients make a class of it: for an
#: object without named fields, openapi-generator writes `Map<String, Object>` into a name, which is not valid Java.
_OBJECT = {
    "title": "DocumentObject",
    "type": "object",
    "properties": {
        "text": {"type": "string", "description": "What is ranked, unless rank_fields names other fields."},
        "title": {"type": "string", "description": "Ranked with the text, unless rank_fields names other fields."},
    },
    "additionalProperties": True,
}
#: A text, or an object with the fields of `rank_fields`.
Document: TypeAlias = str | Annotated[dict[str, Any], WithJsonSchema(_OBJECT)]
#: Texts to rank; pydantic stops at the first error.
Texts: TypeAlias = Annotated[list[str], FailFast()]
Documents: TypeAlias = Annotated[
    list[Document], FailFast(), Field(description='Texts, or objects with the fields of "rank_fields".')
]
#: Fields of documents with an image, as its address or its content, in the APIs of Jina and Cohere.
_IMAGES = ("image", "image_url")
#: Largest number of `rank_fields`, because the service looks each of them up in every document.
_MAX_RANK_FIELDS = 100


def _check_number_of_fields(names: Any) -> Any:
    """Limits the number of fields before pydantic, which makes an error for each field that is not a text."""
    if isinstance(names, list) and len(names) > _MAX_RANK_FIELDS:
        message = f"{len(names)} fields exceed the limit of {_MAX_RANK_FIELDS}; send at most {_MAX_RANK_FIELDS}"
        raise PydanticCustomError("too_long", message)
    return names


RankFields: TypeAlias = Annotated[
    list[str] | None,
    Field(min_length=1, description='Fields of documents that are ranked, 100 at most; none: "text".'),
    BeforeValidator(_check_number_of_fields),
]


#: The field of a result that says that its score has no meaning; see `scored`.
Ranked: TypeAlias = Annotated[
    bool | None,
    Field(
        description="false: no model ranked the results to the end. This one is at its position in the first stage, or "
        "in the best order so far, and its score has no meaning. Missing otherwise."
    ),
]


def _text_of(value: Any) -> Any:
    """Reads a query that some programs send as {"text": …}."""
    return value["text"] if isinstance(value, Mapping) and value.keys() == {"text"} else value


QueryText: TypeAlias = Annotated[str, BeforeValidator(_text_of), Field(description='A text, or {"text": …}.')]


class Options(BaseModel):
    """Fields that requests of every API may have.

    Nothing is converted to another type, and unknown fields are refused unless null.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _known_fields(cls, given: Any) -> Any:
        """Refuses the first unknown field. Pydantic itself would make an error for each of maybe thousands."""
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

    def rank_options(self, top_n: int | None, max_chunks_per_doc: int | None) -> RankOptions:
        """Returns the options of the ranking.

        Args:
            top_n: the number of results; None or 0: all.
            max_chunks_per_doc: largest number of parts of a document that are ranked; None or 0: only its beginning.

        Raises:
            InvalidRequest: both names of the threshold are given.
        """
        if self.min_relevance is not None and self.score_threshold is not None:
            raise InvalidRequest("score_threshold", "min_relevance is given, too, and means the same; send one of them")
        threshold = self.score_threshold if self.min_relevance is None else self.min_relevance
        return RankOptions(
            model=self.model or "",
            top_n=0 if self.return_all else min(top_n or 0, _INT32_MAX),
            ordered=bool(self.ordered),
            min_relevance=None if self.return_all else threshold,
            max_chunks_per_doc=min(max_chunks_per_doc or 0, _INT32_MAX),
            allow_partial=bool(self.allow_partial),
            on_failure=self.on_failure or "",
        )


class DocumentsOptions(Options):
    """Fields that most requests have, next to the query, the documents and the number of results."""

    return_documents: Annotated[Flag, Field(description="Whether results have their document.")] = None
    rank_fields: RankFields = None


class Usage(BaseModel):
    """Tokens that the model read, summed over all windows."""

    prompt_tokens: int
    total_tokens: int


class UsageWithUnits(Usage):
    """Pinecone's clients read `rerank_units`."""

    rerank_units: int = 1


class _Reply(BaseModel):
    """Fields of a reply, next to its results."""

    object: str = "list"
    model: str
    usage: UsageWithUnits


class _Result(BaseModel):
    """Fields of a result, next to its score."""

    index: int
    ranked: Ranked = None
    document: Document | None = None


class DocumentsAPI(RerankAPI):
    """An API whose requests have a query and documents, and whose replies have a score for each document.

    The attributes are names of fields. For a subclass that defines no `request`, the types of request and reply are
    made from these names.

    Attributes:
        query, top_n, passages_field: fields of the request.
        query_type, documents_type: types of the query and of the documents.
        returns: the field of the request that asks for the documents in the reply.
        returns_by_default: the value of this field if the request lacks it.
        results: the list in the reply.
        score, document: fields of an element of this list.
        in_request_order: results come in the order of the request, not best first.
    """

    passages_field, query, top_n, returns = "documents", "query", "top_n", "return_documents"
    results, score, document = "data", "score", "document"
    returns_by_default, in_request_order = False, False
    query_type: Any = QueryText
    documents_type: Any = Documents
    request: type[Options]
    reply: type[BaseModel]

    def __init_subclass__(cls) -> None:
        if "request" in vars(cls):
            return
        service = "".join(filter(str.isalpha, cls.name.rpartition("(")[2]))
        fields: dict[str, Any] = {cls.query: cls.query_type, cls.passages_field: cls.documents_type}
        fields[cls.top_n] = (TopN, None)
        score: dict[str, Any] = {cls.score: float}
        result: Any = create_model(f"{service}Result", __base__=_Result, **score)
        results: dict[str, Any] = {cls.results: list[result]}
        cls.request = create_model(f"{service}Request", __base__=DocumentsOptions, **fields)
        cls.reply = create_model(f"{service}Reply", __base__=_Reply, **results)

    def parse(self, body: Mapping[str, Any]) -> ParsedRequest:
        request = _validated(self.request, body)
        documents = getattr(request, self.passages_field)
        candidates = self.candidates(request, documents)
        options = request.rank_options(getattr(request, self.top_n), getattr(request, "max_chunks_per_doc", None))
        query = Query(getattr(request, self.query), instruction=request.instruction or "")
        best_effort = ["max_chunks_per_doc", *(["min_relevance"] if request.score_threshold is not None else [])]
        render = partial(self._render, request, documents)
        return ParsedRequest(RerankRequest(query, candidates, options), render, best_effort)

    def fields_without_effect(self, body: Mapping[str, Any]) -> list[str]:
        return sorted(name for name in _NO_EFFECT - self.request.model_fields.keys() if body.get(name) is not None)

    def candidates(self, request: Any, documents: Sequence[Document]) -> list[Passage]:
        """Returns the documents as passages, with their positions, from 0, as doc_ids.

        The text of an object has the fields of `rank_fields`, one per line; the default is `text`, with the title.

        Raises:
            InvalidRequest: an object has none of the fields, or one of them is not a text.
        """
        fields, name = getattr(request, "rank_fields", None), self.passages_field
        return [_candidate(document, f"{name}[{index}]", index, fields) for index, document in enumerate(documents)]

    def scored(self, request: Any, ranking: Ranking, documents: int) -> list[Scored]:
        """Returns the results of a ranking of this number of documents, best first.

        Raises:
            InvalidRequest: the API refuses the ranking, such as one with truncated texts.
        """
        return scored(ranking, documents, request.relative_scores)

    def result_document(self, document: Document) -> Document:
        """Returns the document in the form that it has in results."""
        return document

    def content(self, results: list[dict[str, Any]], ranking: Ranking, warnings: Sequence[str]) -> Any:
        """Returns the content of the reply, which its type checks."""
        tokens = ranking.trace.tokens
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return {"model": ranking.trace.model, "usage": usage, self.results: results}

    def _render(
        self, request: Options, documents: Sequence[Document], ranking: Ranking, warnings: Sequence[str]
    ) -> bytes:
        """Returns the JSON of the reply, without fields that are None. Numbers of type float have a decimal point."""
        found = self.scored(request, ranking, len(documents))
        if self.in_request_order:
            found.sort(key=lambda result: result.position)
        requested = getattr(request, self.returns)
        with_documents = self.returns_by_default if requested is None else requested
        results = [
            {
                "index": result.position,
                self.score: result.score,
                "ranked": result.ranked,
                self.document: self.result_document(documents[result.position]) if with_documents else None,
            }
            for result in found
        ]
        reply = self.reply.model_validate(self.content(results, ranking, warnings))
        return reply.model_dump_json(exclude_none=True).encode()


def _validated(kind: type[Options], body: Mapping[str, Any]) -> Options:
    """Returns the body as a request of this type.

    Raises:
        InvalidRequest: the body does not fit; the error names the first problem and the path of its field. Lists in a
            request have `FailFast`, so that pydantic looks for no further problems.
    """
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        if first["type"] == _UNKNOWN_FIELD:
            name, hint = ".".join(filter(None, (_path(first["loc"]), first["ctx"]["name"]))), first["ctx"]["hint"]
            remedy = hint or " GET /openapi.json lists the fields that each path reads"
            raise InvalidRequest(name, f"this service does not know the field;{remedy}") from error
        raise InvalidRequest(_path(first["loc"]), plain_words(first["msg"])) from error


def _path(location: tuple[int | str, ...]) -> str:
    """Returns the path of a field, such as documents[3], without the names of a union's types that pydantic appends."""
    index = next((index for index, part in enumerate(location) if isinstance(part, int)), len(location))
    names = ".".join(str(part) for part in location[:index])
    return f"{names}[{location[index]}]" if index < len(location) else names


def _candidate(document: Document, path: str, index: int, fields: Sequence[str] | None) -> Passage:
    if isinstance(document, str):
        return Passage(str(index), document)
    values = {name: document[name] for name in fields or ("text",) if name in document}
    if not values:
        wanted = " or ".join(fields or ("text",))
        is_image = any(name in document for name in _IMAGES)
        remedy = "images are not read, so send a text" if is_image else "name its texts in rank_fields"
        raise InvalidRequest(path, f"the object has no field {wanted}; {remedy}")
    if other := next((name for name, value in values.items() if not isinstance(value, str)), None):
        problem = f"{reprlib.repr(values[other])} is not a text; send it as a text, or name other fields in rank_fields"
        raise InvalidRequest(f"{path}.{other}", problem)
    title = "" if fields else document.get("title") or ""
    if not isinstance(title, str):
        raise InvalidRequest(f"{path}.title", "it is not a text; send a text, or leave it out")
    return Passage(str(index), "\n".join(values.values()), title=title)
