"""The score API of vLLM: a request has `text_1` and `text_2`, and a reply has the scores in their order."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, FailFast, Field

from rerank.errors import InvalidRequest
from rerank.ports.http.dialects.dialect import Dialect, Translated, Usage, to_json
from rerank.ports.http.dialects.documents import candidates_of
from rerank.ports.http.dialects.options import Options, validated
from rerank.ports.http.dialects.scores import Ranked, scored
from rerank.types import Ranking


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


_Texts: TypeAlias = Annotated[list[str], FailFast(), BeforeValidator(_listed)]


class ScoreRequest(Options):
    """A request: a query and the texts to score. A text may stand for a list with one."""

    text_1: Annotated[_Texts, Field(description="The query.")]
    text_2: Annotated[_Texts, Field(description="The texts to score.")]


class ScoreData(BaseModel):
    """A text with its score."""

    index: int
    object: Literal["score"] = "score"
    score: float
    ranked: Ranked = None


class ScoreReply(BaseModel):
    """A reply: the texts in the order of the request."""

    id: str
    object: Literal["list"] = "list"
    created: Annotated[int, Field(description="Seconds since 1970.")]
    model: str
    data: list[ScoreData]
    usage: Usage


class ScoreDialect(Dialect):
    """The dialect of vLLM's scores."""

    passages_field, name = "text_2", "text_1 and text_2 (vLLM's scores)"
    request, reply = ScoreRequest, ScoreReply

    def translate(self, body: Mapping[str, Any]) -> Translated:
        request = validated(ScoreRequest, body)
        if (queries := len(request.text_1)) != 1:
            raise InvalidRequest("text_1", f"it has {queries} texts; send one text in a request")
        return request.translated(request.text_1[0], candidates_of(request.text_2), partial(_reply, request))


def _reply(request: ScoreRequest, ranking: Ranking, _: Sequence[str]) -> bytes:
    found = scored(ranking, len(request.text_2), request.relative_scores)
    data = [
        ScoreData(index=each.index, score=each.score, ranked=each.ranked)
        for each in sorted(found, key=lambda each: each.index)
    ]
    return to_json(
        ScoreReply(
            id=f"score-{uuid.uuid4().hex}",
            created=int(time.time()),
            model=ranking.trace.model,
            data=data,
            usage=Usage.of(ranking.trace),
        )
    )
