"""The reranking APIs of other services."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, RootModel
from pydantic_core import PydanticCustomError

from rerank.errors import InvalidRequest
from rerank.ports.http.apis.api import ParsedRequest
from rerank.ports.http.apis.documents import (
    Document,
    Documents,
    DocumentsAPI,
    Flag,
    Options,
    Ranked,
    RankFields,
    Texts,
    TopN,
    Usage,
)
from rerank.ports.http.apis.scores import Scored, scored
from rerank.ports.http.problem import Problem
from rerank.types import Passage, Ranking, with_title

#: (texts, max_tokens) → the texts, each cut to at most `max_tokens` tokens.
TextCutter: TypeAlias = Callable[[Sequence[str], int], list[str]]
Positive: TypeAlias = Annotated[int, Field(ge=1)]
#: Scores stay this far from 0 and 1, because their log-odds are infinite there and have no JSON.
_MIN_PROBABILITY = 1e-12
#: HTTP status → the type of an error in TEI's replies; all others have "Validation".
_ERROR_TYPES = {
    HTTPStatus.TOO_MANY_REQUESTS: "Overloaded",
    HTTPStatus.SERVICE_UNAVAILABLE: "Unhealthy",
    HTTPStatus.GATEWAY_TIMEOUT: "Overloaded",
    HTTPStatus.INTERNAL_SERVER_ERROR: "Backend",
}


class VoyageAPI(DocumentsAPI):
    """Voyage."""

    name, top_n, score = "documents with top_k (Voyage)", "top_k", "relevance_score"


class PineconeAPI(DocumentsAPI):
    """Pinecone."""

    name, returns_by_default = "documents (Pinecone)", True


class WeaviateAPI(DocumentsAPI):
    """Weaviate."""

    name, results = "documents with property (Weaviate)", "scores"
    returns_by_default, in_request_order = True, True


class NIMAPI(DocumentsAPI):
    """NVIDIA NIM: a score is the log-odds of the score between 0 and 1 that other APIs return."""

    name, passages_field, results, score = "passages (NVIDIA NIM)", "passages", "rankings", "logit"

    def scored(self, request: Any, ranking: Ranking, documents: int) -> list[Scored]:
        found = super().scored(request, ranking, documents)
        return [result._replace(score=_log_odds(result.score)) for result in found]


def _log_odds(score: float) -> float:
    probability = min(max(score, _MIN_PROBABILITY), 1 - _MIN_PROBABILITY)
    return math.log(probability / (1 - probability))


def _single_text(value: Any) -> Any:
    """Reads a list that has one text, once or several times, as this text.

    vLLM scores one text with all of text_2, or a list of texts pair by pair. Only the former can be a ranking.
    """
    if not isinstance(value, list) or not value:
        return value
    if value.count(value[0]) < len(value):
        problem = "a list of different texts; a request ranks for one of them, so send a request for each"
        raise PydanticCustomError("different_texts", problem)
    return value[0]["text"] if isinstance(value[0], dict) and value[0].keys() == {"text"} else value[0]


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class VllmScoresAPI(DocumentsAPI):
    """vLLM's scores: the query may be a list, and the passages a single text."""

    name, query, passages_field, in_request_order = "text_1 and text_2 (vLLM)", "text_1", "text_2", True
    query_type = Annotated[
        str, BeforeValidator(_single_text), Field(description="A text, or a list of one, also once for each passage.")
    ]
    documents_type = Annotated[Documents, BeforeValidator(_as_list)]

    def parse(self, body: Mapping[str, Any]) -> ParsedRequest:
        parsed = super().parse(body)
        queries, passages = body["text_1"], body["text_2"]
        n = 1 if isinstance(passages, str) else len(passages)
        if isinstance(queries, list) and len(queries) not in (1, n):
            raise InvalidRequest("text_1", f"{len(queries)} texts for {n} of text_2; send one, or {n}")
        return parsed


class DocumentsRequest(Options):
    """A request: the query and the documents."""

    query: str
    documents: Documents
    top_n: TopN = None
    return_documents: Annotated[Flag, Field(description="true: results have their document.")] = None
    rank_fields: RankFields = None
    max_tokens_per_doc: Annotated[
        Positive | None, Field(description="Documents are cut to this number of tokens of the service's encoder.")
    ] = None
    max_chunks_per_doc: Annotated[
        Positive | None,
        Field(
            description="Documents that are longer than the model reads are divided into at most this many parts, and "
            "ranked by their best part; none or 1: only their beginning is read."
        ),
    ] = None


class CohereResult(BaseModel):
    """A document with its relevance, or with a score of this request. A text comes back as {"text": …}."""

    index: int
    relevance_score: Annotated[
        float,
        Field(
            description="Falls along the results. A relevance is a probability that can be compared between requests; "
            "documents whose relevance rises along the order get their mean."
        ),
    ]
    ranked: Ranked = None
    document: dict[str, Any] | None = None


class DocumentsReply(BaseModel):
    """A reply: the results, best first. Cohere's clients read `id` and `meta`, Jina's `object`, `model` and `usage`."""

    id: str
    object: Literal["list"] = "list"
    model: str
    results: list[CohereResult]
    usage: Usage
    meta: dict[str, Any]


class CohereAPI(DocumentsAPI):
    """Cohere (v1 and v2), Jina and vLLM, which are similar enough for one reply.

    Args:
        cut: cuts texts for `max_tokens_per_doc`.
        version: the version of Cohere's API that the reply names, "1" or "2".
    """

    name, results, score = "documents (Cohere, Jina)", "results", "relevance_score"
    request, reply = DocumentsRequest, DocumentsReply

    def __init__(self, cut: TextCutter, version: str) -> None:
        self._cut, self._version = cut, version

    def candidates(self, request: Any, documents: Sequence[Document]) -> list[Passage]:
        candidates = super().candidates(request, documents)
        if request.max_tokens_per_doc is None:
            return candidates
        titled = [with_title(candidate.text, candidate.title) for candidate in candidates]
        cut = self._cut(titled, request.max_tokens_per_doc)
        return [_cut_to(candidate, *texts) for candidate, *texts in zip(candidates, titled, cut, strict=True)]

    def result_document(self, document: Document) -> Document:
        return {"text": document} if isinstance(document, str) else document

    def content(self, results: list[dict[str, Any]], ranking: Ranking, warnings: Sequence[str]) -> Any:
        tokens = {"input_tokens": ranking.trace.tokens, "output_tokens": 0}
        meta: dict[str, Any] = {"api_version": {"version": self._version}, "tokens": tokens}
        if warnings:
            meta["warnings"] = list(warnings)
        return {"id": str(uuid.uuid4()), "meta": meta, **super().content(results, ranking, warnings)}

    def error(self, problem: Problem) -> Mapping[str, Any]:
        """`message` is Cohere's form, `detail` Jina's."""
        return {"id": str(uuid.uuid4()), "message": problem.message, "detail": problem.message}


def _cut_to(candidate: Passage, titled: str, cut: str) -> Passage:
    """Cuts a candidate.

    Args:
        titled: the title and text of the candidate.
        cut: the beginning of `titled` that is kept. If the title itself is cut, it becomes the text.
    """
    title_chars = len(titled) - len(candidate.text)
    if len(cut) > title_chars:
        return replace(candidate, text=cut[title_chars:])
    return replace(candidate, text=cut, title="")


def _capitalized(value: Any) -> Any:
    """Reads "left" as "Left", and "right" as "Right".

    /openapi.json names only Left and Right, because generators of clients cannot make two names that differ only in
    case.
    """
    return value.capitalize() if value in ("left", "right") else value


def _check_direction(direction: str | None) -> str | None:
    if direction == "Left":
        raise PydanticCustomError("truncation_direction", "the end of a text is cut, not its beginning; use Right")
    return direction


class TextsRequest(Options):
    """A request: the query and the texts."""

    query: str
    texts: Texts
    top_n: TopN = None
    return_text: Annotated[Flag, Field(description="true: results have their text.")] = None
    raw_scores: Annotated[Flag, Field(description="true: scores as gRPC returns them, not 0 to 1.")] = None
    truncate: Annotated[Flag, Field(description="false: a text that is longer than the model reads is an error.")] = (
        None
    )
    truncation_direction: Annotated[
        Literal["Left", "Right"] | None,
        BeforeValidator(_capitalized),
        AfterValidator(_check_direction),
        Field(description="Only Right: the beginning is kept."),
    ] = None


class Rank(BaseModel):
    """A text with its score."""

    index: int
    score: float
    ranked: Ranked = None
    text: str | None = None


class RankList(RootModel[list[Rank]]):
    """A reply: the texts, best first."""


class TEIAPI(DocumentsAPI):
    """Text Embeddings Inference (TEI): a request has `texts`, and a reply is a bare array of scores."""

    name, passages_field, returns, document = "texts (TEI)", "texts", "return_text", "text"
    request, reply = TextsRequest, RankList

    def scored(self, request: Any, ranking: Ranking, documents: int) -> list[Scored]:
        """Raises: InvalidRequest if the query or a text was truncated although `truncate` is false."""
        too_long = [f"texts[{doc_id}]" for doc_id in ranking.trace.truncated_doc_ids]
        if ranking.trace.query_truncated:
            too_long = ["query"]
        if too_long and request.truncate is False:
            remedy = "shorten it, or set truncate to true"
            raise InvalidRequest(too_long[0], f"the text is longer than the model reads; {remedy}")
        return scored(ranking, documents, request.relative_scores, request.raw_scores)

    def content(self, results: list[dict[str, Any]], ranking: Ranking, warnings: Sequence[str]) -> Any:
        return results

    def error(self, problem: Problem) -> Mapping[str, Any]:
        return {"error": problem.message, "error_type": _ERROR_TYPES.get(problem.status, "Validation")}
