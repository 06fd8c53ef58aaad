"""The kind of the first stage: request before key before settings, over gRPC and HTTP; what is reported about it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from rerank.access.callers import CallerLimits
from rerank.access.key_file import add_key
from rerank.config import FusionModel, TelemetryConfig
from rerank.models.encoder import Encoder
from rerank.rankers.fusion import FusionRanker
from rerank.types import FirstStageKind
from rerank.v1 import rerank_pb2 as pb
from rerank.v1.rerank_pb2_grpc import RerankServiceStub
from tests.http_client import HttpClient, http_service
from tests.rerank.telemetry.test_metrics import value
from tests.serving import TIMEOUT_S, Served

TEXTS = ["a flea", "the moon", "a cat", "fleas live long", "Paris", "rain", "bread", "a dog", "iron", "years", "sea"]
MODEL = FusionModel(name="fusion", ranker="fusion", sparse_weight=0.0)
LEXICAL, NEURAL = 0.25, 1.5


class Service:
    """A service of a fusion, its clients, and its API keys by name."""

    def __init__(self, served: Served, http: HttpClient, stub: RerankServiceStub, keys: dict[str, str]) -> None:
        self.served, self.http, self.stub, self.keys = served, http, stub, keys

    def header(self, key: str) -> tuple[str, str]:
        return "authorization", f"Bearer {self.keys[key]}"

    def report(self, key: str, **fields: Any) -> pb.InterpolationReport:
        request = pb.RerankRequest(**{"query": "how long do fleas live", "candidates": candidates()} | fields)
        metadata = [self.header(key)]
        return self.stub.Rerank(request, timeout=TIMEOUT_S, metadata=metadata).execution.interpolation


def candidates(scores: bool = True) -> list[pb.Candidate]:
    scored = [{"first_stage_score": -float(place**2)} if scores else {} for place in range(len(TEXTS))]
    return [pb.Candidate(doc_id=f"d{n}", text=text, **scored[n]) for n, text in enumerate(TEXTS)]


@pytest.fixture(scope="module")
def service(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    file: Path = tmp_path_factory.mktemp("kinds") / "keys.yaml"
    keys = {"plain": add_key(file, "plain", CallerLimits())}
    keys["dense"] = add_key(file, "dense", CallerLimits(first_stage_kind=FirstStageKind.NEURAL))
    settings = {"models": (MODEL,), "keys": file, "telemetry": TelemetryConfig(metrics="127.0.0.1:0")}
    rankers = {"fusion": FusionRanker(MODEL, encoder, None)}
    with (
        http_service(encoder, rankers, **settings) as (served, http),
        grpc.insecure_channel(served.address) as channel,
    ):
        yield Service(served, http, RerankServiceStub(channel), keys)


def test_kind_of_the_request_comes_before_that_of_the_key_and_the_settings(service: Service) -> None:
    assert service.report("plain").first_stage == LEXICAL
    assert service.report("dense").first_stage == NEURAL
    assert service.report("plain", first_stage_kind=pb.FIRST_STAGE_KIND_NEURAL).first_stage == NEURAL
    assert service.report("dense", first_stage_kind=pb.FIRST_STAGE_KIND_LEXICAL).first_stage == LEXICAL


@pytest.mark.parametrize("kind", ["neural", "FIRST_STAGE_KIND_NEURAL"])
def test_http_takes_the_kind_by_its_name(service: Service, kind: str) -> None:
    body = {"query": "q", "candidates": [{"doc_id": f"d{n}", "text": text} for n, text in enumerate(TEXTS)]}
    reply = service.http.post("/rerank", {**body, "first_stage_kind": kind}, **dict([service.header("plain")]))
    assert reply.json["execution"]["interpolation"]["first_stage"] == NEURAL


def test_report_and_metrics_have_the_correlation_of_the_list_and_the_mean_of_the_key(service: Service) -> None:
    neural = {"first_stage_kind": pb.FIRST_STAGE_KIND_NEURAL}
    before, again = service.report("dense", **neural), service.report("dense", **neural)
    assert -1 <= again.correlation <= 1
    assert again.correlated_lists == before.correlated_lists + 1
    labels = {"key": "dense", "first_stage_kind": "neural"}
    found = value(service.served, "rerank_first_stage_correlation", **labels)
    assert found == pytest.approx(again.mean_correlation)
    assert value(service.served, "rerank_first_stage_correlation_lists", **labels) == again.correlated_lists


def test_list_without_scores_has_no_correlation(service: Service) -> None:
    report = service.report("plain", candidates=candidates(scores=False))
    assert report.scores == pb.INTERPOLATED_SCORES_RECIPROCAL_RANK
    assert not report.HasField("correlation")
    assert not report.HasField("mean_correlation")
