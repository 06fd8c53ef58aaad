"""Relevance and `min_relevance` over gRPC and HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import grpc
import pytest

from rerank.types import ScoreKind
from rerank.v1 import rerank_pb2 as pb
from rerank.v1.rerank_pb2_grpc import RerankServiceStub
from tests.fakes import NumberRanker
from tests.http_client import HttpClient, http_service
from tests.serving import TIMEOUT_S

if TYPE_CHECKING:
    from rerank.models.encoder import Encoder
    from rerank.retrieval.index import Index

#: A service over gRPC, and its HTTP port.
Ports = tuple[RerankServiceStub, HttpClient]


@pytest.fixture(scope="module")
def ports(encoder: Encoder, index: Index) -> Iterator[Ports]:
    """A service with "probability", whose scores are probabilities, and "number", which gives no relevance."""
    ranker = NumberRanker()
    ranker.info = replace(ranker.info, score_kind=ScoreKind.POINTWISE_PROBABILITY, relevance="score")
    with (
        http_service(encoder, {"probability": ranker, "number": NumberRanker()}, index) as (served, http),
        grpc.insecure_channel(served.address) as channel,
    ):
        yield RerankServiceStub(channel), http


@pytest.mark.parametrize("feedback", [None, pb.Feedback()])
def test_search_leaves_out_what_is_below_the_least_after_all_rankings(
    ports: Ports, feedback: pb.Feedback | None
) -> None:
    stub, _ = ports
    whole = stub.Search(pb.SearchRequest(query="flea", feedback=feedback), timeout=TIMEOUT_S)
    kept = stub.Search(pb.SearchRequest(query="flea", feedback=feedback, min_relevance=0.5), timeout=TIMEOUT_S)
    assert 0 < len(kept.results) < len(whole.results)
    assert [row.doc_id for row in kept.results] == [row.doc_id for row in whole.results if row.relevance >= 0.5]
    assert kept.first_stage_hits == whole.first_stage_hits


def test_models_say_whether_they_give_relevance(ports: Ports) -> None:
    models = ports[0].ListModels(pb.ListModelsRequest(), timeout=TIMEOUT_S).models
    assert {model.name: model.gives_relevance for model in models} == {"probability": True, "number": False}
    assert [model["gives_relevance"] for model in ports[1].get("/v1/models").json["data"]] == [True, False]
