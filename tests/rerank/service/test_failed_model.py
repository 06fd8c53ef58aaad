"""A model that fails its self-test: the service runs without it and reports it in every place."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from safetensors.torch import load_file, save_file

from rerank.config import FirstModel, load_config
from rerank.names import SERVICE
from rerank.rankers.self_test import write_golden
from rerank.reranking.load_models import load_first, scoring_settings
from rerank.reranking.reranker import AsyncReranker, load_reranker
from rerank.v1 import rerank_pb2 as pb
from rerank.v1.rerank_pb2_grpc import RerankServiceStub
from tests.causal_lms import write_causal_lm
from tests.serving import TIMEOUT_S, numbered_candidates, refusal, serving
from tests.small_tokenizers import byte_level

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A causal LM that can be loaded but whose weights are not those of its golden scores."""
    folder = write_causal_lm(tmp_path_factory.mktemp("broken") / "lm", "llama", byte_level())
    model = FirstModel(name="broken", ranker="first", path=folder)
    write_golden(load_first(model, "cpu"), scoring_settings(model), folder)
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"] *= 3
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def loaded(*models: dict[str, object]) -> AsyncReranker:
    return load_reranker(load_config(None, listen="127.0.0.1:0", device="cpu", models=list(models)))


def first(path: Path, name: str = "broken") -> dict[str, object]:
    return {"name": name, "ranker": "first", "path": str(path)}


@pytest.fixture(scope="module")
def channel(broken: Path) -> Iterator[grpc.Channel]:
    """A channel to a service with a good default model and a broken second one."""
    reranker = loaded({"name": "good", "ranker": "pe-rank"}, first(broken))
    with serving(reranker) as service, grpc.insecure_channel(service.address) as opened:
        yield opened


def health(channel: grpc.Channel, name: str) -> int:
    request = health_pb2.HealthCheckRequest(service=name)
    return health_pb2_grpc.HealthStub(channel).Check(request, timeout=TIMEOUT_S).status


def rerank(channel: grpc.Channel, **fields: object) -> pb.RerankResponse:
    request = pb.RerankRequest(query="q", candidates=numbered_candidates([1, 2, 3]), **fields)
    return RerankServiceStub(channel).Rerank(request, timeout=TIMEOUT_S)


@pytest.mark.parametrize(
    "fields",
    [
        {"model": "broken"},
        {"strategy": pb.Strategy(kind=pb.STRATEGY_KIND_CASCADE, preranker="broken")},
    ],
    ids=["model", "preranker"],
)
def test_request_that_names_the_model_is_refused(channel: grpc.Channel, fields: dict[str, object]) -> None:
    refused = refusal(lambda: rerank(channel, **fields))
    assert refused.code is grpc.StatusCode.FAILED_PRECONDITION
    assert refused.reason == "SELF_TEST_FAILED"
    assert refused.message.startswith("model 'broken' is not served; self-test: golden.json belongs to weights")


def test_list_models_describes_the_problem(channel: grpc.Channel) -> None:
    models = RerankServiceStub(channel).ListModels(pb.ListModelsRequest(), timeout=TIMEOUT_S).models
    assert [(model.name, model.is_default, bool(model.problem)) for model in models] == [
        ("good", True, False),
        ("broken", False, True),
    ]
    assert "golden.json belongs to weights" in models[1].problem
    assert (models[1].ranker, len(models[1].model_revision)) == ("first", 64)


def test_service_with_a_failed_default_model_starts_and_is_not_serving(
    broken: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        reranker = loaded(first(broken), {"name": "good", "ranker": "pe-rank"})
    assert "model broken is not served" in caplog.text
    with serving(reranker) as service, grpc.insecure_channel(service.address) as channel:
        names = ["", SERVICE, f"{SERVICE}/good", f"{SERVICE}/broken"]
        assert [health(channel, name) for name in names] == [NOT_SERVING, NOT_SERVING, SERVING, NOT_SERVING]
        assert refusal(lambda: rerank(channel)).reason == "SELF_TEST_FAILED"
        assert len(rerank(channel, model="good").results) == 3
