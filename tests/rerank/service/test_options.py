"""Relevance, `min_relevance` and the weight of the first stage over gRPC and HTTP: request before settings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import grpc
import pytest

from rerank.types import ScoreKind
from rerank.v1 import rerank_pb2 as pb
from rerank.v1.rerank_pb2_grpc import RerankServiceStub
from tests.fakes import NumberRanker
from tests.http_client import HttpClient
from tests.serving import TIMEOUT_S

if TYPE_CHECKING:
    from rerank.retrieval.index import Index


from typing import Any

from rerank.config import PERankModel, TelemetryConfig
from tests.rerank.telemetry.test_metrics import value
from tests.serving import Served, http_service

#: A service over gRPC, and its HTTP port.
Ports = tuple[RerankServiceStub, HttpClient]


@pytest.fixture(scope="module")
def ports(index: Index) -> Iterator[Ports]:
    """A service with "probability", whose scores are probabilities, and "number", which gives no relevance."""
    ranker = NumberRanker(score_kind=ScoreKind.POINTWISE_PROBABILITY, relevance="score")
    with (
        http_service({"probability": ranker, "number": NumberRanker()}, index) as served,
        grpc.insecure_channel(served.address) as channel,
    ):
        yield RerankServiceStub(channel), served.http


@pytest.mark.parametrize("feedback", [None, pb.Feedback()])
def test_search_leaves_out_what_is_below_the_least_after_all_rankings(ports, feedback):
    stub, _ = ports
    whole = stub.Search(pb.SearchRequest(query="flea", feedback=feedback), timeout=TIMEOUT_S)
    kept = stub.Search(pb.SearchRequest(query="flea", feedback=feedback, min_relevance=0.5), timeout=TIMEOUT_S)
    assert 0 < len(kept.results) < len(whole.results)
    assert [row.doc_id for row in kept.results] == [row.doc_id for row in whole.results if row.relevance >= 0.5]
    assert kept.first_stage_hits == whole.first_stage_hits


def test_models_say_whether_they_give_relevance(ports):
    models = ports[0].ListModels(pb.ListModelsRequest(), timeout=TIMEOUT_S).models
    assert {model.name: model.gives_relevance for model in models} == {"probability": True, "number": False}
    assert [model["gives_relevance"] for model in ports[1].get("/v1/models").json["data"]] == [True, False]


MODEL = PERankModel(name="number", ranker="pe-rank", first_stage_weight=0.25)


class Service:
    """A service with a model, and its clients."""

    def __init__(self, served: Served, http: HttpClient, stub: RerankServiceStub) -> None:
        self.served, self.http, self.stub = served, http, stub

    def execution(self, **fields: Any) -> pb.Execution:
        request = pb.RerankRequest(query="q", candidates=candidates(), **fields)
        return self.stub.Rerank(request, timeout=TIMEOUT_S).execution


def candidates() -> list[pb.Candidate]:
    return [pb.Candidate(doc_id=f"d{n}", text=str(n), first_stage_score=-float(n**2)) for n in range(3)]


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    """The first stage of its callers has the weight .5, unless they say otherwise."""
    settings = {"models": (MODEL,), "first_stage_weight": 0.5}
    settings["telemetry"] = TelemetryConfig(metrics="127.0.0.1:0")
    with (
        http_service({"number": NumberRanker()}, **settings) as served,
        grpc.insecure_channel(served.address) as channel,
    ):
        yield Service(served, served.http, RerankServiceStub(channel))


@pytest.mark.parametrize(
    ("asked", "weight"),
    [
        (None, 0.5),
        (pb.FirstStageWeight(), 0.5),
        (pb.FirstStageWeight(kind=pb.FIRST_STAGE_KIND_AUTO), 0.25),
        (pb.FirstStageWeight(kind=pb.FIRST_STAGE_KIND_NEURAL), 0.25),
        (pb.FirstStageWeight(number=0.0), 0.0),
        (pb.FirstStageWeight(number=7.0), 7.0),
    ],
)
def test_request_comes_before_the_settings(service, asked, weight):
    assert service.execution(first_stage_weight=asked).first_stage_weight == weight


@pytest.mark.parametrize(
    ("given", "weight"),
    [("neural", 0.25), ("FIRST_STAGE_KIND_NEURAL", 0.25), (0.75, 0.75), ({"number": 1}, 1.0), ({"kind": "auto"}, 0.25)],
)
def test_http_takes_a_number_or_the_name_of_a_kind(service, given, weight):
    body = {"query": "q", "candidates": [{"doc_id": f"d{n}", "text": str(n)} for n in range(3)]}
    reply = service.http.post("/rerank", {**body, "first_stage_weight": given})
    assert reply.json["execution"]["first_stage_weight"] == weight


def test_metrics_have_the_mean_of_kendalls_tau(service):
    taus = [service.execution(first_stage_weight=pb.FirstStageWeight(number=n)).kendall_tau for n in (0, 100)]
    assert taus == [-1.0, 1.0]
    assert value(service.served, "rerank_first_stage_kendall_tau_count", model="number") >= len(taus)
