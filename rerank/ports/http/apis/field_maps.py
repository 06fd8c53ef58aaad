"""The reranking APIs that differ in names only: Voyage, Pinecone, NVIDIA NIM, Weaviate and vLLM's scores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, TypeAlias

from pydantic import BaseModel, BeforeValidator, Field, create_model
from pydantic_core import PydanticCustomError

from rerank.errors import InvalidRequest
from rerank.ports.http.apis.api import (
    Document,
    Documents,
    Flag,
    Options,
    ParsedRequest,
    RankFields,
    RerankAPI,
    TopN,
    Usage,
    candidates_of,
    to_json,
    validated,
)
from rerank.ports.http.apis.scores import Ranked, scored
from rerank.types import Ranking

#: Scores stay this far from 0 and 1, because their log-odds are infinite there and have no JSON.
_MIN_PROBABILITY = 1e-12


def _text_of(value: Any) -> Any:
    return value["text"] if isinstance(value, Mapping) and value.keys() == {"text"} else value


def _one_of_list(value: Any) -> Any:
    """The text of a list that has one, maybe several times: vLLM scores it with one text, or each with its own."""
    if not isinstance(value, list) or not value:
        return value
    if value.count(value[0]) < len(value):
        problem = "a list of different texts; a request ranks for one of them, so send a request for each"
        raise PydanticCustomError("different_texts", problem)
    return _text_of(value[0])


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


_QueryText: TypeAlias = Annotated[str, BeforeValidator(_text_of), Field(description='A text, or {"text": …}.')]


_QueryTexts: TypeAlias = Annotated[
    str, BeforeValidator(_one_of_list), Field(description="A text, or a list of one, also once for each passage.")
]
_OneOrMoreDocuments: TypeAlias = Annotated[Documents, BeforeValidator(_listed)]


class _Request(Options):
    """Fields of the requests of all mapped APIs, next to the query, the passages and the number of results."""

    return_documents: Annotated[Flag, Field(description="Whether results have their document.")] = None
    rank_fields: RankFields = None


class RowUsage(Usage):
    """Pinecone's clients read `rerank_units`."""

    rerank_units: int = 1


class _Reply(BaseModel):
    """Fields of the replies of all mapped APIs, next to the results."""

    object: str = "list"
    model: str
    usage: RowUsage


class _Result(BaseModel):
    """Fields of the results of all mapped APIs, next to the score."""

    index: int
    ranked: Ranked = None
    document: Document | None = None


class MappedAPI(RerankAPI):
    """An API as a map of its fields: its requests and replies have other names.

    Args:
        api: the name of the API.
        contents: the fields that an error names to describe a request.
        query, passages, top_n: names of fields of the request.
        results: name of the list in the reply.
        score: name of the score in each of its elements.
        is_log_odds: whether a score is the log-odds of the number between 0 and 1 that other APIs get.
        shows_documents: whether results have their document if the request does not say it.
        in_request_order: whether results come in the order of the request, not best first.
        takes_either: whether the query may be a list, and the passages a single text.
    """

    def __init__(
        self,
        api: str,
        contents: str,
        *,
        query: str = "query",
        passages: str = "documents",
        top_n: str = "top_n",
        results: str = "data",
        score: str = "score",
        is_log_odds: bool = False,
        shows_documents: bool = False,
        in_request_order: bool = False,
        takes_either: bool = False,
    ) -> None:
        self.name, self.passages_field = f"{contents} ({api})", passages
        self._query, self._top_n, self._results, self._score = query, top_n, results, score
        self._is_log_odds, self._shows_documents = is_log_odds, shows_documents
        self._in_request_order = in_request_order
        kind = "".join(filter(str.isalpha, api))
        texts = (_QueryTexts, _OneOrMoreDocuments) if takes_either else (_QueryText, Documents)
        given: dict[str, Any] = {query: texts[0], passages: texts[1], top_n: (TopN, None)}
        of_result: dict[str, Any] = {score: float}
        result: Any = create_model(f"{kind}Result", __base__=_Result, **of_result)
        listed: dict[str, Any] = {results: list[result]}
        self.request: type[_Request] = create_model(f"{kind}Request", __base__=_Request, **given)
        self.reply: type[_Reply] = create_model(f"{kind}Reply", __base__=_Reply, **listed)

    def parse(self, body: Mapping[str, Any]) -> ParsedRequest:
        request = validated(self.request, body)
        documents = getattr(request, self.passages_field)
        if isinstance(queries := body.get(self._query), list) and len(queries) not in (1, len(documents)):
            problem = f"{len(queries)} texts for {len(documents)} of {self.passages_field}; send one, or as many"
            raise InvalidRequest(self._query, problem)
        candidates = candidates_of(documents, request.rank_fields, self.passages_field)
        reply = partial(self._reply, request, documents)
        return request.parsed(getattr(request, self._query), candidates, reply, getattr(request, self._top_n))

    def _reply(self, request: _Request, documents: Sequence[Document], ranking: Ranking, _: Sequence[str]) -> bytes:
        found = scored(ranking, len(documents), request.relative_scores)
        if self._in_request_order:
            found.sort(key=lambda result: result.position)
        asked = request.return_documents
        is_shown = self._shows_documents if asked is None else asked
        results = [
            {
                "index": result.position,
                "ranked": result.ranked,
                "document": documents[result.position] if is_shown else None,
                self._score: _log_odds(result.score) if self._is_log_odds else result.score,
            }
            for result in found
        ]
        tokens = ranking.trace.tokens
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return to_json(self.reply, {"model": ranking.trace.model, "usage": usage, self._results: results})


def _log_odds(score: float) -> float:
    probability = min(max(score, _MIN_PROBABILITY), 1 - _MIN_PROBABILITY)
    return math.log(probability / (1 - probability))


VOYAGE = MappedAPI("Voyage", "documents with top_k", top_n="top_k", score="relevance_score")
PINECONE = MappedAPI("Pinecone", "documents", shows_documents=True)
NIM = MappedAPI("NVIDIA NIM", "passages", passages="passages", results="rankings", score="logit", is_log_odds=True)
WEAVIATE = MappedAPI(
    "Weaviate", "documents with property", results="scores", shows_documents=True, in_request_order=True
)
VLLM_SCORES = MappedAPI(
    "vLLM", "text_1 and text_2", query="text_1", passages="text_2", in_request_order=True, takes_either=True
)
