"""The reranking APIs of Cohere (v1 and v2), Jina and vLLM, which are so alike that one reply serves their clients."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, Field

from rerank.ports.http.apis.api import (
    Documents,
    Flag,
    Options,
    ParsedRequest,
    RankFields,
    RerankAPI,
    TopN,
    Usage,
    as_object,
    candidates_of,
    to_json,
    validated,
)
from rerank.ports.http.apis.scores import Ranked, scored
from rerank.ports.http.problem import Problem
from rerank.types import Passage, Ranking, with_title

#: (texts, tokens) → each text cut to at most as many tokens.
Cut: TypeAlias = Callable[[Sequence[str], int], list[str]]
Positive: TypeAlias = Annotated[int, Field(ge=1)]


class DocumentsRequest(Options):
    """A request: the query and the documents."""

    query: str
    documents: Documents
    top_n: TopN = None
    return_documents: Annotated[Flag, Field(description="true: results have their document.")] = None
    rank_fields: RankFields = None
    max_tokens_per_doc: Annotated[
        Positive | None, Field(description="Longer documents are cut to as many tokens of the service's encoder.")
    ] = None
    max_chunks_per_doc: Annotated[
        Positive | None,
        Field(
            description="Documents that are longer than the model reads are divided into at most as many parts, and "
            "ranked by their best one; none or 1: only their beginning is read."
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


class CohereAPI(RerankAPI):
    """The API of Cohere, Jina and vLLM.

    Args:
        cut: cuts texts for `max_tokens_per_doc`.
        version: the version of Cohere's API that the reply names, "1" or "2".
    """

    passages_field, name = "documents", "documents (Cohere, Jina)"
    request, reply = DocumentsRequest, DocumentsReply

    def __init__(self, cut: Cut, version: str) -> None:
        self._cut, self._version = cut, version

    def parse(self, body: Mapping[str, Any]) -> ParsedRequest:
        request = validated(DocumentsRequest, body)
        candidates = candidates_of(request.documents, request.rank_fields)
        if request.max_tokens_per_doc is not None:
            candidates = self._shortened(candidates, request.max_tokens_per_doc)
        reply = partial(self._reply, request)
        return request.parsed(request.query, candidates, reply, request.top_n, request.max_chunks_per_doc or 0)

    def error(self, problem: Problem) -> Mapping[str, Any]:
        """`message` is Cohere's form, `detail` Jina's."""
        return {"id": str(uuid.uuid4()), "message": problem.message, "detail": problem.message}

    def _shortened(self, candidates: Sequence[Passage], tokens: int) -> list[Passage]:
        wholes = [with_title(candidate.text, candidate.title) for candidate in candidates]
        triples = zip(candidates, wholes, self._cut(wholes, tokens), strict=True)
        return [_cut_to(candidate, whole, text) for candidate, whole, text in triples]

    def _reply(self, request: DocumentsRequest, ranking: Ranking, warnings: Sequence[str]) -> bytes:
        results = [
            {
                "index": result.position,
                "relevance_score": result.score,
                "ranked": result.ranked,
                "document": as_object(request.documents[result.position]) if request.return_documents else None,
            }
            for result in scored(ranking, len(request.documents), request.relative_scores)
        ]
        tokens = ranking.trace.tokens
        meta = {
            "api_version": {"version": self._version},
            "tokens": {"input_tokens": tokens, "output_tokens": 0},
            **({"warnings": list(warnings)} if warnings else {}),
        }
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        reply = {
            "id": str(uuid.uuid4()),
            "model": ranking.trace.model,
            "results": results,
            "usage": usage,
            "meta": meta,
        }
        return to_json(DocumentsReply, reply)


def _cut_to(candidate: Passage, whole: str, text: str) -> Passage:
    """The candidate with the beginning `text` of its title and text together; without a title where that is cut."""
    title_chars = len(whole) - len(candidate.text)
    if len(text) > title_chars:
        return replace(candidate, text=text[title_chars:])
    return replace(candidate, text=text, title="")
