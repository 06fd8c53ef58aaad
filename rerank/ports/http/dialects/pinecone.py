"""The reranking API of Pinecone: documents are objects, and a reply has its results in `data`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from rerank.ports.http.dialects.dialect import Dialect, Translated, to_json
from rerank.ports.http.dialects.documents import (
    Documents,
    RankFields,
    as_object,
    candidates_of,
    ranked_texts,
    refuse_truncated,
)
from rerank.ports.http.dialects.options import Flag, Options, StrictModel, TopN, validated
from rerank.ports.http.dialects.scores import Ranked, scored
from rerank.types import Ranking


class PineconeParameters(StrictModel):
    """Options of a model of Pinecone."""

    truncate: Annotated[
        Literal["NONE", "END"] | None,
        Field(description="NONE: a document that is longer than the model reads is an error."),
    ] = None


class PineconeRequest(Options):
    """A request: the query and the documents."""

    query: str
    documents: Documents
    top_n: TopN = None
    rank_fields: RankFields = None
    return_documents: Annotated[Flag, Field(description="false: results do not have their document.")] = None
    parameters: PineconeParameters | None = None


class PineconeResult(BaseModel):
    """A document with its score."""

    index: int
    score: float
    ranked: Ranked = None
    document: dict[str, Any] | None = None


class PineconeUsage(BaseModel):
    """The units of use that Pinecone's clients expect. Here, a request is one."""

    rerank_units: int = 1


class PineconeReply(BaseModel):
    """A reply: the results, best first."""

    model: str
    data: list[PineconeResult]
    usage: PineconeUsage


class PineconeDialect(Dialect):
    """The dialect of Pinecone."""

    passages_field, name = "documents", "documents (Pinecone)"
    request, reply = PineconeRequest, PineconeReply

    def translate(self, body: Mapping[str, Any]) -> Translated:
        request = validated(PineconeRequest, body)
        candidates = candidates_of(ranked_texts(request.documents, request.rank_fields))
        return request.translated(request.query, candidates, partial(_reply, request), request.top_n)


def _reply(request: PineconeRequest, ranking: Ranking, _: Sequence[str]) -> bytes:
    if request.parameters is not None and request.parameters.truncate == "NONE":
        refuse_truncated(ranking, "documents", "set parameters.truncate to END")
    data = [
        PineconeResult(
            index=each.index,
            score=each.score,
            ranked=each.ranked,
            document=None if request.return_documents is False else as_object(request.documents[each.index]),
        )
        for each in scored(ranking, len(request.documents), request.relative_scores)
    ]
    return to_json(PineconeReply(model=ranking.trace.model, data=data, usage=PineconeUsage()))
