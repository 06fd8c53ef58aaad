"""The reranking API of Text Embeddings Inference (TEI): `texts` in, a bare array of scores out."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, Literal

from pydantic import BaseModel, FailFast, Field, RootModel

from rerank.errors import InvalidRequest
from rerank.ports.http.dialect import Translated, to_json, validated
from rerank.ports.http.failure_fields import FailureFields
from rerank.ports.http.problem import Problem
from rerank.ports.http.relevance import UNRANKED_RAW, Ranked, relevance_scores, unranked
from rerank.service.requests import RerankRequest
from rerank.types import CandidateSource, Query, Ranking, RankOptions

_ERROR_TYPES = {
    HTTPStatus.TOO_MANY_REQUESTS: "Overloaded",
    HTTPStatus.SERVICE_UNAVAILABLE: "Unhealthy",
    HTTPStatus.GATEWAY_TIMEOUT: "Overloaded",
    HTTPStatus.INTERNAL_SERVER_ERROR: "Backend",
}


class TextsRequest(FailureFields):
    """Request: the query, and the texts; see `ordered`."""

    query: str
    texts: Annotated[list[str], FailFast()]
    model: Annotated[str | None, Field(description="A model of the service; none: the default model.")] = None
    top_n: Annotated[int | None, Field(ge=0, description="Number of results; none or 0: all. Not part of TEI.")] = None
    ordered: Annotated[
        bool | None,
        Field(
            description="Whether the order is that of a first stage, best first, which then counts; none: false, equal "
            "texts get equal scores. Not part of TEI."
        ),
    ] = None
    min_relevance: Annotated[
        float | None,
        Field(description="Least relevance of a result, 0 to 1; refused by models without. Not part of TEI."),
    ] = None
    relative_scores: Annotated[
        bool | None,
        Field(description="Scores of this request only, although the model gives a relevance. Not part of TEI."),
    ] = None
    return_text: Annotated[bool | None, Field(description="Whether results have their text.")] = None
    raw_scores: Annotated[bool | None, Field(description="Scores as gRPC returns them instead of 0 to 1.")] = None
    truncate: Annotated[
        bool | None, Field(description="false: a text that is longer than the model reads is an error.")
    ] = None
    truncation_direction: Annotated[
        Literal["left", "right", "Left", "Right"] | None, Field(description="Only right: the beginning is kept.")
    ] = None


class Rank(BaseModel):
    """A text with its score."""

    index: int
    score: float
    ranked: Ranked = None
    text: str | None = None


class RankList(RootModel[list[Rank]]):
    """Reply: the texts, best first."""


class TEIDialect:
    """The dialect of TEI."""

    passages_field, name = "texts", "texts (TEI)"
    request, reply = TextsRequest, RankList

    def translate(self, body: Mapping[str, Any]) -> Translated:
        request = validated(TextsRequest, body)
        if (request.truncation_direction or "right").lower() == "left":
            raise InvalidRequest("truncation_direction", "the end of a text is cut, not its beginning; use right")
        options = RankOptions(
            model=request.model or "",
            top_n=min(request.top_n or 0, len(request.texts)),
            ordered=bool(request.ordered),
            min_relevance=request.min_relevance,
            **request.failure_fields(),
        )
        candidates = [CandidateSource(str(place), text) for place, text in enumerate(request.texts)]
        return Translated(RerankRequest(Query(request.query), candidates, options), partial(_reply, request))

    def error(self, problem: Problem) -> Mapping[str, Any]:
        return {"error": problem.message, "error_type": _ERROR_TYPES.get(problem.status, "Validation")}


def _reply(request: TextsRequest, ranking: Ranking) -> bytes:
    too_long = ranking.trace.truncated_doc_ids
    if request.truncate is False and too_long:
        raise InvalidRequest(
            f"texts[{too_long[0]}]", "the text is longer than the model reads; shorten it, or set truncate to true"
        )
    marks = unranked(ranking)
    if request.raw_scores:
        pairs = zip(ranking.ranked, marks, strict=True)
        scores = [UNRANKED_RAW if ranked is False else result.score for result, ranked in pairs]
    else:
        scores = relevance_scores(ranking, len(request.texts), request.relative_scores)
    ranks = [
        Rank(
            index=result.position,
            score=score,
            ranked=ranked,
            text=request.texts[result.position] if request.return_text else None,
        )
        for result, score, ranked in zip(ranking.ranked, scores, marks, strict=True)
    ]
    return to_json(RankList(ranks))
