"""The reranking API of Voyage AI: the number of results is `top_k`, and a reply has its results in `data`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from rerank.ports.http.dialects.dialect import Dialect, Translated, Usage, to_json
from rerank.ports.http.dialects.documents import Texts, candidates_of, refuse_truncated
from rerank.ports.http.dialects.options import Flag, Options, TopN, validated
from rerank.ports.http.dialects.scores import Ranked, scored
from rerank.types import Ranking


class VoyageRequest(Options):
    """A request: the query and the documents."""

    query: str
    documents: Texts
    top_k: TopN = None
    return_documents: Annotated[Flag, Field(description="true: results have their document.")] = None
    truncation: Annotated[
        Flag, Field(description="false: a document that is longer than the model reads is an error.")
    ] = None


class VoyageResult(BaseModel):
    """A document with its score."""

    index: int
    relevance_score: float
    ranked: Ranked = None
    document: str | None = None


class VoyageReply(BaseModel):
    """A reply: the results, best first."""

    object: Literal["list"] = "list"
    data: list[VoyageResult]
    model: str
    usage: Usage


class VoyageDialect(Dialect):
    """The dialect of Voyage."""

    passages_field, name = "documents", "documents with top_k (Voyage)"
    request, reply = VoyageRequest, VoyageReply

    def translate(self, body: Mapping[str, Any]) -> Translated:
        request = validated(VoyageRequest, body)
        return request.translated(
            request.query, candidates_of(request.documents), partial(_reply, request), request.top_k
        )


def _reply(request: VoyageRequest, ranking: Ranking, _: Sequence[str]) -> bytes:
    if request.truncation is False:
        refuse_truncated(ranking, "documents", "set truncation to true")
    data = [
        VoyageResult(
            index=each.index,
            relevance_score=each.score,
            ranked=each.ranked,
            document=request.documents[each.index] if request.return_documents else None,
        )
        for each in scored(ranking, len(request.documents), request.relative_scores)
    ]
    return to_json(VoyageReply(data=data, model=ranking.trace.model, usage=Usage.of(ranking.trace)))
