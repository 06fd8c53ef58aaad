"""HTTP calls of the trials: requests in several dialects whose answers are known, and how each call ended."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, TypeAlias

import httpx2
from google.protobuf.json_format import MessageToDict

from rerank.v1 import rerank_pb2 as pb
from scripts.load_test.open_loop import Call, Outcome
from scripts.trials.references import is_near

#: Scores by the doc_id or the index of the passage.
Scores: TypeAlias = Mapping[str, float]

RIGHT, WRONG = "200", "200 with a wrong answer"
UNAVAILABLE, OVERLOADED = "503 with Retry-After", "429 with Retry-After"
REFUSED, CLOSED = "connection refused", "connection closed"
#: Ends that give a right answer, or tell the caller to ask another replica, or later.
CLEAN = {RIGHT, UNAVAILABLE, OVERLOADED, REFUSED, CLOSED}

_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class HttpRequest:
    """A request in one dialect: a path and a JSON body."""

    path: str
    body: Mapping[str, Any]


@dataclass(frozen=True)
class HttpReference:
    """A request and the scores of its answer by a calm service."""

    request: HttpRequest
    scores: Scores

    def is_right(self, answer: Any) -> bool:
        """True if the JSON of an answer has the passages of the reference with nearly equal scores."""
        return is_near(_scores(answer), self.scores)


def http_requests(messages: Sequence[pb.RerankRequest]) -> list[HttpRequest]:
    """Each message in the service's own JSON, and those that need no other field also for Cohere, Jina and TEI."""
    made: list[HttpRequest] = []
    for message in messages:
        made.append(HttpRequest("/rerank", MessageToDict(message, preserving_proto_field_name=True)))
        if message.HasField("strategy"):
            continue
        asked = {"query": message.query, "model": message.model}
        texts = [candidate.text for candidate in message.candidates]
        made += [HttpRequest(path, asked | {"documents": texts}) for path in ("/v1/rerank", "/v2/rerank", "/rerank")]
        made.append(HttpRequest("/rerank", asked | {"texts": texts}))
    return made


async def http_references(address: str, requests: Sequence[HttpRequest]) -> list[HttpReference]:
    """The references for these requests, asked one after the other. Raises: httpx2.HTTPError."""
    async with httpx2.AsyncClient(base_url=f"http://{address}", timeout=_TIMEOUT_S) as client:
        answers = [(await client.post(each.path, json=each.body)).raise_for_status().json() for each in requests]
    return [HttpReference(request, _scores(answer)) for request, answer in zip(requests, answers, strict=True)]


async def answers_rightly(address: str, reference: HttpReference) -> bool:
    """True if the service gives the known answer."""
    async with http_calls(address, [reference]) as call:
        return (await call(0)).status == RIGHT


@asynccontextmanager
async def http_calls(address: str, references: Sequence[HttpReference]) -> AsyncIterator[Call]:
    """A function that sends the request of a number, again from the first one after the last, and checks the answer."""
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx2.AsyncClient(base_url=f"http://{address}", timeout=_TIMEOUT_S, limits=limits) as client:

        async def call(number: int) -> Outcome:
            reference = references[number % len(references)]
            try:
                response = await client.post(reference.request.path, json=reference.request.body)
            except httpx2.ConnectError:
                return Outcome(REFUSED)
            except (httpx2.NetworkError, httpx2.RemoteProtocolError):
                return Outcome(CLOSED)
            return Outcome(_end(response, reference))

        yield call


def _end(response: httpx2.Response, reference: HttpReference) -> str:
    if response.status_code == HTTPStatus.OK:
        return RIGHT if reference.is_right(response.json()) else WRONG
    has_retry_after = "retry-after" in response.headers
    return f"{response.status_code}{' with Retry-After' if has_retry_after else ''}"


def _scores(answer: Any) -> dict[str, float]:
    """The scores of a reply in any of the dialects: TEI's is a list of results, the others have `results`."""
    results = answer if isinstance(answer, list) else answer["results"]
    return {str(_first_of(each, "doc_id", "index")): _first_of(each, "score", "relevance_score") for each in results}


def _first_of(result: Mapping[str, Any], *names: str) -> Any:
    return next(result[name] for name in names if name in result)
