"""The API of Weaviate's module reranker-transformers: a reply has the scores in the order of the request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any

from pydantic import BaseModel, Field

from rerank.ports.http.dialects.dialect import Dialect, Translated, to_json
from rerank.ports.http.dialects.documents import Texts, candidates_of
from rerank.ports.http.dialects.options import Options, validated
from rerank.ports.http.dialects.scores import Ranked, scored
from rerank.types import Ranking


class WeaviateRequest(Options):
    """A request: the query and the documents."""

    query: str
    documents: Texts
    property: Annotated[str | None, Field(description="Weaviate's name of the field with the documents.")]


class DocumentScore(BaseModel):
    """A document with its score."""

    document: str
    score: float
    ranked: Ranked = None


class WeaviateReply(BaseModel):
    """A reply: the documents in the order of the request."""

    query: str
    property: str | None
    scores: list[DocumentScore]


class WeaviateDialect(Dialect):
    """The dialect of Weaviate."""

    passages_field, name = "documents", "documents with property (Weaviate)"
    request, reply = WeaviateRequest, WeaviateReply

    def translate(self, body: Mapping[str, Any]) -> Translated:
        request = validated(WeaviateRequest, body)
        return request.translated(request.query, candidates_of(request.documents), partial(_reply, request))


def _reply(request: WeaviateRequest, ranking: Ranking, _: Sequence[str]) -> bytes:
    found = scored(ranking, len(request.documents), request.relative_scores)
    scores = [
        DocumentScore(document=request.documents[each.index], score=each.score, ranked=each.ranked)
        for each in sorted(found, key=lambda each: each.index)
    ]
    return to_json(WeaviateReply(query=request.query, property=request.property, scores=scores))
