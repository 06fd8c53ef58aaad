"""Requests whose answers are known: asked of a calm service first, and compared with every later answer."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from rerank.v1 import rerank_pb2 as pb
from scripts.load_test.requests import made_request, words

#: A stub of grpc.aio; the generated stubs are typed as those of a blocking channel.
Stub: TypeAlias = Any
Message: TypeAlias = pb.RerankRequest | pb.SearchRequest
#: Scores of the same passage in two batches differ by less; they are log-probabilities, or z-scores.
_TOLERANCE = 0.01
_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Reference:
    """A request and its answer by a calm service."""

    message: Message
    answer: pb.RerankResponse | pb.SearchResponse

    def is_right(self, answer: pb.RerankResponse | pb.SearchResponse) -> bool:
        """True if an answer has the passages of the reference, in its order but for passages of nearly equal scores."""
        given = {result.doc_id: result.score for result in answer.results}
        expected = {result.doc_id: result.score for result in self.answer.results}
        if answer.score_kind != self.answer.score_kind:
            return False
        if answer.score_kind == pb.SCORE_KIND_RANK:
            return given == expected
        return is_near(given, expected)


def is_near(given: Mapping[str, float], expected: Mapping[str, float]) -> bool:
    """True if the same passages have nearly equal scores."""
    return given.keys() == expected.keys() and all(abs(given[name] - expected[name]) < _TOLERANCE for name in expected)


def rerank_messages(draw: random.Random) -> list[pb.RerankRequest]:
    """Requests to all default models, of several strategies and sizes."""
    models = ["identity"] * 8 + ["pe-rank"] * 6 + ["default"] * 2
    made = [made_request(draw, model, draw.choice([1, 5, 12]), draw.choice([40, 200])) for model in models]
    sliding = pb.Strategy(kind="STRATEGY_KIND_SLIDING", window_size=4, stride=2)
    tournament = pb.Strategy(kind="STRATEGY_KIND_TOURNAMENT", window_size=3)
    made += [made_request(draw, "identity", 30, 80, strategy=strategy, top_n=5) for strategy in (sliding, tournament)]
    return [*made, made_request(draw, "pe-rank", 12, 80, strategy=sliding, return_passages=True)]


def search_messages(draw: random.Random) -> list[pb.SearchRequest]:
    """Searches with each first stage, and one with relevance feedback."""
    stages = pb.FirstStage.keys()[1:]
    plain = [pb.SearchRequest(query=words(draw, 30), first_stage=stage, depth=10, model="identity") for stage in stages]
    return [*plain, pb.SearchRequest(query=words(draw, 30), depth=10, model="pe-rank", feedback=pb.Feedback(steps=3))]


async def call(stub: Stub, message: Any, timeout_s: float = _TIMEOUT_S) -> Any:
    """The answer to a message of either RPC."""
    method = stub.Search if isinstance(message, pb.SearchRequest) else stub.Rerank
    return await method(message, timeout=timeout_s)


async def references(stub: Stub, requests: Sequence[Message]) -> list[Reference]:
    """The references for these requests, asked one after the other."""
    return [Reference(message, await call(stub, message)) for message in requests]
