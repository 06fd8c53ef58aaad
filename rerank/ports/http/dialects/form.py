"""A dialect as a row of a table: the names of its fields, and what stands in those of its replies."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import Any, TypeAlias

from pydantic import BaseModel, RootModel, create_model
from pydantic_core import to_json

from rerank.errors import InvalidRequest
from rerank.ports.http.dialects.dialect import Dialect, Translated, Usage
from rerank.ports.http.dialects.documents import as_object, candidates_of, refuse_truncated
from rerank.ports.http.dialects.options import Options, TextField, validated
from rerank.ports.http.dialects.scores import Ranked, scored
from rerank.types import Passage, RankedCandidate, Ranking

#: Scores stay this far from 0 and 1, because the logits there are infinite and have no JSON.
_LEAST = 1e-12


class Slot(Enum):
    """The meaning of a field of a reply, or of one of its results."""

    RESULTS = auto()
    MODEL = auto()
    USAGE = auto()
    ID = auto()
    CREATED = auto()
    QUERY = auto()
    PROPERTY = auto()
    INDEX = auto()
    SCORE = auto()
    LOGIT = auto()
    RANKED = auto()
    TEXT = auto()
    OBJECT = auto()


#: Name of a field → what stands there: a slot, or a value that is the same in every reply.
Template: TypeAlias = Mapping[str, Any]
_TYPES: dict[Slot, Any] = {
    Slot.MODEL: str,
    Slot.USAGE: Usage,
    Slot.ID: str,
    Slot.CREATED: int,
    Slot.QUERY: str,
    Slot.INDEX: int,
    Slot.SCORE: float,
    Slot.LOGIT: float,
    Slot.RANKED: Ranked,
    Slot.TEXT: str,
    Slot.OBJECT: dict[str, Any],
}


@dataclass(frozen=True, kw_only=True)
class Form(Dialect):
    """A dialect that differs from others in names and places only.

    Attributes:
        result: the fields of a result. Those whose slot has no value are absent.
        envelope: the fields of a reply; none: a reply is the list of its results.
        query: the field with the query; where it is a list, there is one text for each passage, or one for all.
        top_n: the field with the number of results; empty if the API has none.
        shows_documents: whether results have their document if `return_documents` does not say it.
        in_request_order: whether results come in the order of the request, not best first.
        truncation: path of the field that says what becomes of passages which are longer than the model reads, its
            value that refuses them, and its other value in words.
    """

    name: str
    passages_field: str = "documents"
    request: type[Options]
    result: Template
    envelope: Template
    query: str = "query"
    top_n: str = ""
    shows_documents: bool = True
    in_request_order: bool = False
    truncation: tuple[str, Any, str] | None = None

    @property
    def reply(self) -> type[BaseModel]:
        """The type of a reply, for the description of the port."""
        name = self.request.__name__.removesuffix("Request")
        result: Any = create_model(f"{name}Result", **_typed(self.result))
        if not self.envelope:
            return create_model(f"{name}Reply", __base__=RootModel[list[result]])
        return create_model(f"{name}Reply", **_typed(self.envelope, {Slot.RESULTS: list[result]}))

    def translate(self, body: Mapping[str, Any]) -> Translated:
        request = validated(self.request, body)
        passages = [_text(passage) for passage in getattr(request, self.passages_field)]
        candidates = candidates_of(passages, getattr(request, "rank_fields", None))
        query = getattr(request, self.query)
        queries = query if isinstance(query, list) else [_text(query)]
        if not queries or len(queries) not in {1, len(passages)}:
            counts = f"it has {len(queries)} texts, and {self.passages_field} {len(passages)}"
            raise InvalidRequest(self.query, f"{counts}; send one text, or one for each of {self.passages_field}")
        by_query: dict[str, list[Passage]] = {}
        for text, candidate in zip(queries * (len(candidates) if len(queries) == 1 else 1), candidates, strict=True):
            by_query.setdefault(text, []).append(candidate)
        reply = partial(self._reply, request, passages)
        top_n = getattr(request, self.top_n) if self.top_n else None
        return request.translated(by_query or {queries[0]: []}, reply, top_n)

    def _reply(self, request: Options, passages: Sequence[Any], ranking: Ranking, _: Sequence[str]) -> bytes:
        if self.truncation is not None:
            path, refuses, allows = self.truncation
            if _at(request, path) == refuses:
                refuse_truncated(ranking, self.passages_field, f"set {path} to {allows}")
        found = scored(ranking, len(passages), request.relative_scores, is_raw=_at(request, "use_activation") is False)
        if self.in_request_order:
            found.sort(key=lambda result: result[0].position)
        asked = _at(request, "return_documents")
        is_shown = self.shows_documents if asked is None else asked
        results = [
            _filled(self.result, _slots(result, ranked, passages[result.position] if is_shown else None))
            for result, ranked in found
        ]
        if not self.envelope:
            return to_json(results)
        slots = {
            Slot.RESULTS: results,
            Slot.MODEL: ranking.trace.model,
            Slot.USAGE: Usage.of(ranking.trace),
            Slot.ID: f"score-{uuid.uuid4().hex}",
            Slot.CREATED: int(time.time()),
            Slot.QUERY: _at(request, self.query),
            Slot.PROPERTY: _at(request, "property"),
        }
        return to_json(_filled(self.envelope, slots))


def _slots(result: RankedCandidate, ranked: bool | None, passage: Any) -> dict[Slot, Any]:
    """The values that a result may show, without its passage if that is None."""
    return {
        Slot.INDEX: result.position,
        Slot.SCORE: result.score,
        Slot.LOGIT: _logit(result.score),
        Slot.RANKED: ranked,
        Slot.TEXT: passage,
        Slot.OBJECT: None if passage is None else as_object(passage),
    }


def _filled(template: Template, slots: Mapping[Slot, Any]) -> dict[str, Any]:
    filled = {name: slots[value] if isinstance(value, Slot) else value for name, value in template.items()}
    return {name: value for name, value in filled.items() if value is not None}


def _typed(template: Template, further: Mapping[Slot, Any] | None = None) -> dict[str, Any]:
    """The fields of a template for `create_model`."""
    types = _TYPES | dict(further or {})
    return {
        name: (types.get(value, Any), None) if isinstance(value, Slot) else (type(value), value)
        for name, value in template.items()
    }


def _text(value: Any) -> Any:
    """The text of a query or a passage that is an object with nothing else."""
    return value.text if isinstance(value, TextField) else value


def _at(request: Options, path: str) -> Any:
    """The value of a field, such as parameters.truncate; None if the request does not have it."""
    value: Any = request
    for name in path.split("."):
        value = getattr(value, name, None)
    return value


def _logit(score: float) -> float:
    """The logit whose sigmoid is the score from 0 to 1 that other dialects give."""
    probability = min(max(score, _LEAST), 1 - _LEAST)
    return math.log(probability / (1 - probability))
