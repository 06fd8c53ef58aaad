"""The reranking APIs of Cohere (v1 and v2) and Jina, which are so alike that one reply serves the clients of both."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, FailFast, Field
from pydantic_core import PydanticCustomError

from rerank.errors import InvalidRequest
from rerank.http.dialect import StrictModel, Translated, to_json, validated
from rerank.http.failure_fields import FailureFields
from rerank.http.problem import Problem
from rerank.http.relevance import relevance_scores
from rerank.types import with_title
from rerank.v1 import rerank_pb2 as pb

#: Cuts each text to at most so many tokens.
Cut: TypeAlias = Callable[[Sequence[str], int], list[str]]
Positive: TypeAlias = Annotated[int, Field(ge=1)]
#: Each is looked up in every document.
_MAX_RANK_FIELDS = 100


def _few(names: Any) -> Any:
    """The fields to rank, counted before pydantic looks at them and makes an error of each that is no text."""
    if isinstance(names, list) and len(names) > _MAX_RANK_FIELDS:
        message = f"{len(names)} fields exceed the limit of {_MAX_RANK_FIELDS}; send at most {_MAX_RANK_FIELDS}"
        raise PydanticCustomError("too_long", message)
    return names


class RelevantSpans(StrictModel):
    """Option of Cohere's models from v5, which mark the relevant parts of a document."""

    mode: Literal["enabled", "disabled"] = "disabled"
    threshold: float | None = None
    max_spans: int | None = None


class DocumentsRequest(FailureFields):
    """Request: the query, and the documents; see `ordered`."""

    query: str
    documents: Annotated[
        list[str | dict[str, Any]],
        FailFast(),
        Field(description='Texts, or objects with the fields of "rank_fields".'),
    ]
    model: Annotated[str | None, Field(description="A model of the service; none: the default model.")] = None
    top_n: Annotated[int | None, Field(ge=1, description="Number of results; none: all.")] = None
    return_documents: Annotated[bool | None, Field(description="Whether results have their document.")] = None
    instruction: Annotated[
        str | None, Field(description="What is relevant, in words; refused by models that read no instruction.")
    ] = None
    ordered: Annotated[
        bool | None,
        Field(
            description="Whether the order is that of a first stage, best first, which then counts; none: false, equal "
            "documents get equal scores."
        ),
    ] = None
    rank_fields: Annotated[
        list[str] | None,
        Field(min_length=1, description='Fields of documents that are ranked, 100 at most; none: "text".'),
        BeforeValidator(_few),
    ] = None
    max_tokens_per_doc: Annotated[
        Positive | None, Field(description="Longer documents are cut to so many tokens of the service's encoder.")
    ] = None
    max_chunks_per_doc: Annotated[int | None, Field(description="Only 1: documents are not divided.")] = None
    priority: Annotated[int | None, Field(description="Only 0: all requests have the same priority.")] = None
    relevant_spans: Annotated[RelevantSpans | None, Field(description="Only the mode disabled.")] = None


class DocumentsRequestOrAll(DocumentsRequest):
    """Request in which `top_n` 0 means all results, as vLLM reads it."""

    top_n: Annotated[int | None, Field(ge=0, description="Number of results; none or 0: all.")] = None


class CohereResult(BaseModel):
    """A document with its relevance; `document` as it was sent, or {"text"} for a text."""

    index: int
    relevance_score: float
    document: dict[str, Any] | None = None


class Usage(BaseModel):
    """Tokens that the model read, summed over all windows."""

    prompt_tokens: int
    total_tokens: int


class DocumentsReply(BaseModel):
    """Reply: results, best first. Cohere's clients read `id` and `meta`, Jina's `object`, `model` and `usage`."""

    id: str
    object: Literal["list"] = "list"
    model: str
    results: list[CohereResult]
    usage: Usage
    meta: dict[str, Any]


class CohereDialect:
    """The dialect of Cohere, which is also that of Jina and vLLM.

    Args:
        cut: cuts texts for `max_tokens_per_doc`.
        version: the version of Cohere's API that the reply names, "1" or "2".
        request: the type of the request.
    """

    passages_field, name = "documents", "documents (Cohere, Jina)"
    reply = DocumentsReply

    def __init__(self, cut: Cut, version: str, request: type[DocumentsRequest] = DocumentsRequest) -> None:
        self._cut, self._version, self.request = cut, version, request

    def translate(self, body: Mapping[str, Any]) -> Translated:
        request = validated(self.request, body)
        _refuse_unsupported(request)
        texts = [_text(document, place, request.rank_fields) for place, document in enumerate(request.documents)]
        titles = [_title(document, place, request.rank_fields) for place, document in enumerate(request.documents)]
        if request.max_tokens_per_doc is not None:
            texts = self._cut(texts, request.max_tokens_per_doc)
        message = pb.RerankRequest(
            query=request.query,
            candidates=[
                pb.Candidate(doc_id=str(place), text=text, title=title if text.startswith(title) else "")
                for place, (text, title) in enumerate(zip(texts, titles, strict=True))
            ],
            model=request.model or "",
            top_n=min(request.top_n or 0, len(texts)),
            instruction=request.instruction or "",
            ordered=bool(request.ordered),
            **request.failure_fields(),
        )
        return Translated(message, partial(self._reply, request))

    def error(self, problem: Problem) -> Mapping[str, Any]:
        """`message` is Cohere's form, `detail` Jina's."""
        return {"id": str(uuid.uuid4()), "message": problem.message, "detail": problem.message}

    def _reply(self, request: DocumentsRequest, response: pb.RerankResponse) -> bytes:
        scores = relevance_scores(response, len(request.documents))
        results = [
            CohereResult(
                index=result.original_position,
                relevance_score=score,
                document=_as_object(request.documents[result.original_position]) if request.return_documents else None,
            )
            for result, score in zip(response.results, scores, strict=True)
        ]
        tokens = response.execution.tokens
        return to_json(
            DocumentsReply(
                id=str(uuid.uuid4()),
                model=response.execution.model,
                results=results,
                usage=Usage(prompt_tokens=tokens, total_tokens=tokens),
                meta=self._meta(response.execution),
            )
        )

    def _meta(self, execution: pb.Execution) -> dict[str, Any]:
        meta: dict[str, Any] = {
            "api_version": {"version": self._version},
            "tokens": {"input_tokens": execution.tokens, "output_tokens": 0},
        }
        return meta | {"warnings": found} if (found := warnings(execution)) else meta


def warnings(execution: pb.Execution) -> list[str]:
    """Warnings about a ranking: passages that were truncated or not read, and doubts about the model."""
    cut = len(execution.truncated_doc_ids)
    found = [
        f"{cut} documents are longer than the model reads and were truncated" if cut else "",
        execution.reason,
        execution.model_warning,
    ]
    return [warning for warning in found if warning]


def _refuse_unsupported(request: DocumentsRequest) -> None:
    """Refuses values of options that would have to be ignored. Raises: InvalidRequest."""
    if request.max_chunks_per_doc not in (None, 1):
        raise InvalidRequest("max_chunks_per_doc", "documents are not divided into chunks; leave it out")
    if request.priority not in (None, 0):
        raise InvalidRequest("priority", f"{request.priority} is not supported; leave it out")
    if request.relevant_spans is not None and request.relevant_spans.mode == "enabled":
        raise InvalidRequest("relevant_spans", "relevant spans are not supported; leave it out")


def _text(document: str | Mapping[str, Any], place: int, fields: Sequence[str] | None) -> str:
    """The text that is ranked: of an object, its fields in the given order, one per line, or title and text."""
    if isinstance(document, str):
        return document
    values = [document[name] for name in fields or ("text",) if name in document]
    if not values or not all(isinstance(value, str) for value in values):
        wanted = " or ".join(fields or ("text",))
        raise InvalidRequest(f"documents[{place}]", f"the object has no text in the field {wanted}; see rank_fields")
    return with_title("\n".join(values), _title(document, place, fields))


def _title(document: str | Mapping[str, Any], place: int, fields: Sequence[str] | None) -> str:
    """The title, which is put before the text of an object, unless `fields` say what is ranked."""
    title = "" if isinstance(document, str) or fields else document.get("title") or ""
    if not isinstance(title, str):
        raise InvalidRequest(f"documents[{place}].title", "it is no text; send a text, or leave it out")
    return title


def _as_object(document: str | dict[str, Any]) -> dict[str, Any]:
    return {"text": document} if isinstance(document, str) else document
