"""The reranking API of Text Embeddings Inference (TEI): a request has `texts`, a reply is a bare array of scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, RootModel

from rerank.errors import InvalidRequest
from rerank.ports.http.apis.api import (
    Flag,
    Options,
    ParsedRequest,
    RerankAPI,
    Texts,
    TopN,
    candidates_of,
    to_json,
    validated,
)
from rerank.ports.http.apis.scores import Ranked, scored
from rerank.ports.http.problem import Problem
from rerank.types import Ranking

_ERROR_TYPES = {
    HTTPStatus.TOO_MANY_REQUESTS: "Overloaded",
    HTTPStatus.SERVICE_UNAVAILABLE: "Unhealthy",
    HTTPStatus.GATEWAY_TIMEOUT: "Overloaded",
    HTTPStatus.INTERNAL_SERVER_ERROR: "Backend",
}


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
        Literal["left", "right", "Left", "Right"] | None, Field(description="Only right: the beginning is kept.")
    ] = None


class Rank(BaseModel):
    """A text with its score."""

    index: int
    score: float
    ranked: Ranked = None
    text: str | None = None


class RankList(RootModel[list[Rank]]):
    """A reply: the texts, best first."""


class TEIAPI(RerankAPI):
    """The API of TEI."""

    passages_field, name = "texts", "texts (TEI)"
    request, reply = TextsRequest, RankList

    def parse(self, body: Mapping[str, Any]) -> ParsedRequest:
        request = validated(TextsRequest, body)
        if (request.truncation_direction or "right").lower() == "left":
            raise InvalidRequest("truncation_direction", "the end of a text is cut, not its beginning; use right")
        reply = partial(_reply, request)
        return request.parsed(request.query, candidates_of(request.texts), reply, request.top_n)

    def error(self, problem: Problem) -> Mapping[str, Any]:
        return {"error": problem.message, "error_type": _ERROR_TYPES.get(problem.status, "Validation")}


def _refuse_truncated(ranking: Ranking) -> None:
    """Raises: InvalidRequest if the model did not read the query or a text to its end."""
    fields = [f"texts[{doc_id}]" for doc_id in ranking.trace.truncated_doc_ids]
    if too_long := (["query"] if ranking.trace.query_truncated else fields):
        way_out = "shorten it, or set truncate to true"
        raise InvalidRequest(too_long[0], f"the text is longer than the model reads; {way_out}")


def _reply(request: TextsRequest, ranking: Ranking, _: Sequence[str]) -> bytes:
    if request.truncate is False:
        _refuse_truncated(ranking)
    found = scored(ranking, len(request.texts), request.relative_scores, request.raw_scores)
    ranks = [
        {
            "index": result.position,
            "score": result.score,
            "ranked": result.ranked,
            "text": request.texts[result.position] if request.return_text else None,
        }
        for result in found
    ]
    return to_json(RankList, ranks)
