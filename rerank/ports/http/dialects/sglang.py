"""The reranking API of SGLang: a request has `documents`, and a reply is a bare array of scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any

from pydantic import BaseModel, Field, RootModel

from rerank.ports.http.dialects.dialect import Dialect, Translated, to_json
from rerank.ports.http.dialects.documents import Texts, candidates_of
from rerank.ports.http.dialects.options import Flag, Options, TopN, validated
from rerank.ports.http.dialects.scores import Ranked, scored
from rerank.types import Ranking


class SGLangRequest(Options):
    """A request: the query and the documents."""

    query: str
    documents: Texts
    top_n: TopN = None
    return_documents: Annotated[Flag, Field(description="false: results do not have their document.")] = None


class SGLangResult(BaseModel):
    """A document with its score."""

    index: int
    score: float
    ranked: Ranked = None
    document: str | None = None


class SGLangReply(RootModel[list[SGLangResult]]):
    """A reply: the documents, best first."""


class SGLangDialect(Dialect):
    """The dialect of SGLang."""

    passages_field, name = "documents", "documents (SGLang)"
    request, reply = SGLangRequest, SGLangReply

    def translate(self, body: Mapping[str, Any]) -> Translated:
        request = validated(SGLangRequest, body)
        return request.translated(
            request.query, candidates_of(request.documents), partial(_reply, request), request.top_n
        )


def _reply(request: SGLangRequest, ranking: Ranking, _: Sequence[str]) -> bytes:
    results = [
        SGLangResult(
            index=each.index,
            score=each.score,
            ranked=each.ranked,
            document=None if request.return_documents is False else request.documents[each.index],
        )
        for each in scored(ranking, len(request.documents), request.relative_scores)
    ]
    return to_json(SGLangReply(results))
