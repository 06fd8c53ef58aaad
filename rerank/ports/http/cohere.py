"""The reranking APIs of Cohere (v1 and v2) and Jina, which are so alike that one reply serves the clients of both."""

from __future__ import annotations

import reprlib
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, FailFast, Field
from pydantic_core import PydanticCustomError

from rerank.errors import InvalidRequest
from rerank.ports.http.dialect import StrictModel, Translated, to_json, validated
from rerank.ports.http.failure_fields import FailureFields
from rerank.ports.http.problem import Problem
from rerank.ports.http.relevance import Ranked, relevance_scores, unranked
from rerank.service.requests import RerankRequest
from rerank.types import CandidateSource, Query, RankedCandidate, Ranking, RankOptions, Trace, with_title

#: Cuts each text to at most so many tokens.
Cut: TypeAlias = Callable[[Sequence[str], int], list[str]]
Positive: TypeAlias = Annotated[int, Field(ge=1)]
_INT32_MAX = 2**31 - 1
#: Cohere's former default of max_chunks_per_doc.
_SPAN_CHUNKS = 10
#: Each is looked up in every document.
_MAX_RANK_FIELDS = 100


def _few(names: Any) -> Any:
    """The fields to rank, counted before pydantic looks at them and makes an error of each that is no text."""
    if isinstance(names, list) and len(names) > _MAX_RANK_FIELDS:
        message = f"{len(names)} fields exceed the limit of {_MAX_RANK_FIELDS}; send at most {_MAX_RANK_FIELDS}"
        raise PydanticCustomError("too_long", message)
    return names


class RelevantSpans(StrictModel):
    """Option of Cohere's models from v5: results have the part of the document that decided."""

    mode: Literal["enabled", "disabled"] = "disabled"
    threshold: Annotated[float | None, Field(description="Results with a lower relevance_score have no span.")] = None
    max_spans: Annotated[Positive | None, Field(description="At least 1: a result has one span at most.")] = None


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
    min_relevance: Annotated[
        float | None, Field(description="Least relevance of a result, 0 to 1; refused by models without.")
    ] = None
    relative_scores: Annotated[
        bool | None,
        Field(description="Scores of this request only, although the model gives a relevance."),
    ] = None
    rank_fields: Annotated[
        list[str] | None,
        Field(min_length=1, description='Fields of documents that are ranked, 100 at most; none: "text".'),
        BeforeValidator(_few),
    ] = None
    max_tokens_per_doc: Annotated[
        Positive | None, Field(description="Longer documents are cut to so many tokens of the service's encoder.")
    ] = None
    max_chunks_per_doc: Annotated[
        Positive | None,
        Field(
            description="Longer documents than the model reads are divided into up to so many parts, and ranked by "
            "their best one; 1: only their beginning is read; none: 1, or 10 with relevant_spans."
        ),
    ] = None
    priority: Annotated[int | None, Field(description="Only 0: all requests have the same priority.")] = None
    relevant_spans: Annotated[
        RelevantSpans | None, Field(description="enabled: results have the span of the part by which they are ranked.")
    ] = None

    @property
    def has_spans(self) -> bool:
        return self.relevant_spans is not None and self.relevant_spans.mode == "enabled"

    @property
    def chunks(self) -> int:
        """The parts per document, 0 for undivided ones. More than the message can hold are as many as it can."""
        return min(self.max_chunks_per_doc or (_SPAN_CHUNKS if self.has_spans else 0), _INT32_MAX)


class DocumentsRequestOrAll(DocumentsRequest):
    """Request in which `top_n` 0 means all results, as vLLM reads it."""

    top_n: Annotated[int | None, Field(ge=0, description="Number of results; none or 0: all.")] = None


class RelevantSpan(BaseModel):
    """A part of a document's text, in characters, with the relevance of the document."""

    start: int
    end: int
    score: float


class CohereResult(BaseModel):
    """A document with its relevance, or a score of this request; `document` as it was sent, or {"text"} for a text."""

    index: int
    relevance_score: Annotated[
        float,
        Field(
            description="A relevance depends on the query and the document alone, so it may be larger than that of "
            "the document before, as the order comes from more signals. A score of this request never is."
        ),
    ]
    ranked: Ranked = None
    document: dict[str, Any] | None = None
    relevant_spans: list[RelevantSpan] | None = None


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
        options = RankOptions(
            model=request.model or "",
            top_n=min(request.top_n or 0, len(texts)),
            ordered=bool(request.ordered),
            min_relevance=request.min_relevance,
            max_chunks_per_doc=request.chunks,
            **request.failure_fields(),
        )
        candidates = [
            CandidateSource(str(place), text, title=title if text.startswith(title) else "")
            for place, (text, title) in enumerate(zip(texts, titles, strict=True))
        ]
        query = Query(request.query, instruction=request.instruction or "")
        return Translated(RerankRequest(query, candidates, options), partial(self._reply, request, texts))

    def error(self, problem: Problem) -> Mapping[str, Any]:
        """`message` is Cohere's form, `detail` Jina's."""
        return {"id": str(uuid.uuid4()), "message": problem.message, "detail": problem.message}

    def _reply(self, request: DocumentsRequest, texts: Sequence[str], ranking: Ranking) -> bytes:
        scores = relevance_scores(ranking, len(request.documents), request.relative_scores)
        results = [
            CohereResult(
                index=result.position,
                relevance_score=score,
                ranked=ranked,
                document=_as_object(request.documents[result.position]) if request.return_documents else None,
                relevant_spans=_spans(request, texts, result, score) if request.has_spans else None,
            )
            for result, score, ranked in zip(ranking.ranked, scores, unranked(ranking), strict=True)
        ]
        tokens = ranking.trace.tokens
        return to_json(
            DocumentsReply(
                id=str(uuid.uuid4()),
                model=ranking.trace.model,
                results=results,
                usage=Usage(prompt_tokens=tokens, total_tokens=tokens),
                meta=self._meta(ranking.trace),
            )
        )

    def _meta(self, trace: Trace) -> dict[str, Any]:
        meta: dict[str, Any] = {
            "api_version": {"version": self._version},
            "tokens": {"input_tokens": trace.tokens, "output_tokens": 0},
        }
        return meta | {"warnings": found} if (found := warnings(trace)) else meta


def warnings(trace: Trace) -> list[str]:
    """Warnings about a ranking: passages that were truncated or not read, and doubts about the model."""
    cut = len(trace.truncated_doc_ids)
    found = [
        f"{cut} documents are longer than the model reads and were truncated" if cut else "",
        trace.reason,
        trace.model_warning,
    ]
    return [warning for warning in found if warning]


def _refuse_unsupported(request: DocumentsRequest) -> None:
    """Refuses values of options that would have to be ignored. Raises: InvalidRequest."""
    if request.priority not in (None, 0):
        raise InvalidRequest("priority", f"{request.priority} is not supported; leave it out")


def _spans(
    request: DocumentsRequest, texts: Sequence[str], result: RankedCandidate, score: float
) -> list[RelevantSpan]:
    """The part of a document that decided, in its text without the title; of an undivided one all that was ranked."""
    threshold = request.relevant_spans.threshold if request.relevant_spans else None
    if threshold is not None and score < threshold:
        return []
    place, fields = result.position, request.rank_fields
    document = request.documents[place]
    title_chars = len(_text(document, place, fields)) - len(_body(document, place, fields))
    start, end = result.span or (0, len(texts[place]))
    return [RelevantSpan(start=max(0, start - title_chars), end=max(0, end - title_chars), score=score)]


def _text(document: str | Mapping[str, Any], place: int, fields: Sequence[str] | None) -> str:
    """The text that is ranked: of an object, its fields in the given order, one per line, or title and text."""
    return with_title(_body(document, place, fields), _title(document, place, fields))


def _body(document: str | Mapping[str, Any], place: int, fields: Sequence[str] | None) -> str:
    """The text without a title in front of it."""
    if isinstance(document, str):
        return document
    values = {name: document[name] for name in fields or ("text",) if name in document}
    if not values:
        wanted = " or ".join(fields or ("text",))
        raise InvalidRequest(f"documents[{place}]", f"the object has no field {wanted}; name its texts in rank_fields")
    if other := next((name for name, value in values.items() if not isinstance(value, str)), None):
        problem = f"{reprlib.repr(values[other])} is no text; send it as a text, or name other fields in rank_fields"
        raise InvalidRequest(f"documents[{place}].{other}", problem)
    return "\n".join(values.values())


def _title(document: str | Mapping[str, Any], place: int, fields: Sequence[str] | None) -> str:
    """The title, which is put before the text of an object, unless `fields` say what is ranked."""
    title = "" if isinstance(document, str) or fields else document.get("title") or ""
    if not isinstance(title, str):
        raise InvalidRequest(f"documents[{place}].title", "it is no text; send a text, or leave it out")
    return title


def _as_object(document: str | dict[str, Any]) -> dict[str, Any]:
    return {"text": document} if isinstance(document, str) else document
