"""The weight of the first stage: request before settings, over gRPC and HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from rerank.config import PERankModel, TelemetryConfig
from rerank.v1 import rerank_pb2 as pb
from rerank.v1.rerank_pb2_grpc import RerankServiceStub
from tests.fakes import NumberRanker
from tests.http_client import HttpClient, http_service
from tests.rerank.telemetry.test_metrics import value
from tests.serving import TIMEOUT_S, Served

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
def service(encoder: Any) -> Iterator[Service]:
    """The first stage of its callers has the weight .5, unless they say otherwise."""
    settings = {"models": (MODEL,), "first_stage_weight": 0.5}
    settings["telemetry"] = TelemetryConfig(metrics="127.0.0.1:0")
    with (
        http_service(encoder, {"number": NumberRanker()}, **settings) as (served, http),
        grpc.insecure_channel(served.address) as channel,
    ):
        yield Service(served, http, RerankServiceStub(channel))


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
def test_request_comes_before_the_settings(service: Service, asked: pb.FirstStageWeight | None, weight: float) -> None:
    assert service.execution(first_stage_weight=asked).first_stage_weight == weight


@pytest.mark.parametrize(
    ("given", "weight"),
    [("neural", 0.25), ("FIRST_STAGE_KIND_NEURAL", 0.25), (0.75, 0.75), ({"number": 1}, 1.0), ({"kind": "auto"}, 0.25)],
)
def test_http_takes_a_number_or_the_name_of_a_kind(service: Service, given: object, weight: float) -> None:
    body = {"query": "q", "candidates": [{"doc_id": f"d{n}", "text": str(n)} for n in range(3)]}
    reply = service.http.post("/rerank", {**body, "first_stage_weight": given})
    assert reply.json["execution"]["first_stage_weight"] == weight


def test_metrics_have_the_mean_of_kendalls_tau(service: Service) -> None:
    taus = [service.execution(first_stage_weight=pb.FirstStageWeight(number=n)).kendall_tau for n in (0, 100)]
    assert taus == [-1.0, 1.0]
    assert value(service.served, "rerank_first_stage_kendall_tau_count", model="number") >= len(taus)
