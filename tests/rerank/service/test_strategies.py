"""Every strategy over a real socket: with a perfect ranker the best passages come first, at the reported cost."""

from __future__ import annotations

import random
from collections.abc import Iterator

import grpc
import pytest

from rerank.models.encoder import Encoder
from rerank.v1 import rerank_pb2 as pb
from rerank.v1.rerank_pb2_grpc import RerankServiceStub
from tests.fakes import NumberRanker
from tests.serving import TIMEOUT_S, numbered_candidates, reranker_of, serving

RELEVANCE = random.Random(4).sample(range(100), k=100)
BEST = [f"d{position}" for position in sorted(range(100), key=lambda position: -RELEVANCE[position])]

#: Description → strategy of the request, its name in the response, and the allowed numbers of windows and of rounds.
STRATEGIES = {
    "sliding": (pb.Strategy(kind=pb.STRATEGY_KIND_SLIDING), "sliding(20/10)", range(9, 10), range(9, 10)),
    "early stop": (
        pb.Strategy(kind=pb.STRATEGY_KIND_SLIDING, early_stop=True),
        "sliding(20/10, early stop)",
        range(2, 10),
        range(2, 10),
    ),
    "top-down": (pb.Strategy(kind=pb.STRATEGY_KIND_TOP_DOWN), "top-down(20)", range(6, 40), range(2, 20)),
    "tournament": (pb.Strategy(kind=pb.STRATEGY_KIND_TOURNAMENT), "tournament(20)", range(11, 12), range(4, 5)),
    "cascade": (
        pb.Strategy(kind=pb.STRATEGY_KIND_CASCADE, preranker="preranker"),
        "cascade(preranker: sliding(20/10) > 20)",
        range(10, 11),
        range(10, 11),
    ),
}


@pytest.fixture(scope="module")
def stub(encoder: Encoder) -> Iterator[RerankServiceStub]:
    reranker = reranker_of(encoder, {"default": NumberRanker(), "preranker": NumberRanker()})
    with serving(reranker) as service, grpc.insecure_channel(service.address) as channel:
        yield RerankServiceStub(channel)


def rerank(stub: RerankServiceStub, strategy: pb.Strategy) -> pb.RerankResponse:
    request = pb.RerankRequest(query="q", candidates=numbered_candidates(RELEVANCE), strategy=strategy)
    return stub.Rerank(request, timeout=TIMEOUT_S)


@pytest.mark.parametrize(("strategy", "name", "windows", "rounds"), STRATEGIES.values(), ids=STRATEGIES)
def test_best_ten_passages_come_first_at_the_reported_cost(
    stub: RerankServiceStub, strategy: pb.Strategy, name: str, windows: range, rounds: range
) -> None:
    reply = rerank(stub, strategy)
    assert sorted(result.doc_id for result in reply.results) == sorted(BEST)
    assert [result.doc_id for result in reply.results[:10]] == BEST[:10]
    assert reply.execution.strategy == name
    assert reply.execution.windows in windows
    assert reply.execution.rounds in rounds
    assert reply.execution.completeness == pb.COMPLETENESS_FULL


def test_interpolation_of_a_request_orders_by_both_scores(stub: RerankServiceStub) -> None:
    """The first stage's scores are the negative relevance, so a weight above 1 reverses the order."""
    strategy = pb.Strategy(kind=pb.STRATEGY_KIND_SINGLE, window_size=100, interpolation=pb.Interpolation(first_stage=2))
    candidates = numbered_candidates(RELEVANCE)
    for candidate, number in zip(candidates, RELEVANCE, strict=True):
        candidate.first_stage_score = -number
    reply = stub.Rerank(pb.RerankRequest(query="q", candidates=candidates, strategy=strategy), timeout=TIMEOUT_S)
    assert [result.doc_id for result in reply.results] == BEST[::-1]
    assert reply.score_kind == pb.SCORE_KIND_INTERPOLATED
    assert reply.execution.strategy == "single(100) + 2 first stage"
    assert reply.execution.interpolation == pb.InterpolationReport(
        first_stage=2, applied=True, scores=pb.INTERPOLATED_SCORES_FIRST_STAGE
    )
