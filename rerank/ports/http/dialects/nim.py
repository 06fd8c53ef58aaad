"""The reranking API of NVIDIA NIM: a request has `passages`, and a reply has a logit for each of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import BaseModel, FailFast, Field

from rerank.ports.http.dialects.dialect import Dialect, Translated, Usage, to_json
from rerank.ports.http.dialects.documents import candidates_of, refuse_truncated
from rerank.ports.http.dialects.options import Options, StrictModel, TopN, validated
from rerank.ports.http.dialects.scores import Ranked, scored
from rerank.types import Ranking

#: Scores stay this far from 0 and 1, because the logits there are infinite and have no JSON.
_LEAST = 1e-12


class NimText(StrictModel):
    """A query or a passage."""

    text: str


class RankingRequest(Options):
    """A request: the query and the passages."""

    query: NimText
    passages: Annotated[list[NimText], FailFast()]
    top_n: TopN = None
    truncate: Annotated[
        Literal["NONE", "END"] | None,
        Field(description="NONE: a passage that is longer than the model reads is an error."),
    ] = None


class NimRanking(BaseModel):
    """A passage with its logit: 1 / (1 + exp(-logit)) is the score from 0 to 1 that other dialects give."""

    index: int
    logit: float
    ranked: Ranked = None


class RankingReply(BaseModel):
    """A reply: the passages, best first."""

    rankings: list[NimRanking]
    usage: Usage


class NimDialect(Dialect):
    """The dialect of NIM."""

    passages_field, name = "passages", "passages (NVIDIA NIM)"
    request, reply = RankingRequest, RankingReply

    def translate(self, body: Mapping[str, Any]) -> Translated:
        request = validated(RankingRequest, body)
        candidates = candidates_of(passage.text for passage in request.passages)
        return request.translated(request.query.text, candidates, partial(_reply, request), request.top_n)


def _reply(request: RankingRequest, ranking: Ranking, _: Sequence[str]) -> bytes:
    if request.truncate == "NONE":
        refuse_truncated(ranking, "passages", "set truncate to END")
    rankings = [
        NimRanking(index=each.index, logit=_logit(each.score), ranked=each.ranked)
        for each in scored(ranking, len(request.passages), request.relative_scores)
    ]
    return to_json(RankingReply(rankings=rankings, usage=Usage.of(ranking.trace)))


def _logit(score: float) -> float:
    probability = min(max(score, _LEAST), 1 - _LEAST)
    return math.log(probability / (1 - probability))
