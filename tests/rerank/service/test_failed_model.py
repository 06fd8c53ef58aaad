"""A model that fails its self-test: the service runs without it and reports it in every place."""

from __future__ import annotations

import logging
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from safetensors.torch import load_file, save_file

from rerank.config import FirstModel, load_config
from rerank.names import SERVICE
from rerank.rankers.self_test import write_golden
from rerank.reranking.load_models import load_first, scoring_settings
from rerank.reranking.reranker import load_reranker
from rerank.v1 import rerank_pb2 as pb
from rerank.v1.rerank_pb2_grpc import RerankServiceStub
from tests.causal_lms import write_causal_lm
from tests.serving import TIMEOUT_S, numbered_candidates, refusal, serving
from tests.small_tokenizers import byte_level

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture
def broken(tmp_path: Path) -> FirstModel:
    """A causal LM that can be loaded but whose weights are not those of its golden scores."""
    folder = write_causal_lm(tmp_path / "lm", "llama", byte_level())
    model = FirstModel(name="broken", ranker="first", path=folder)
    write_golden(load_first(model, "cpu"), scoring_settings(model), folder)
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"] *= 3
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return model


def health(channel: grpc.Channel, name: str) -> int:
    request = health_pb2.HealthCheckRequest(service=name)
    return health_pb2_grpc.HealthStub(channel).Check(request, timeout=TIMEOUT_S).status


def test_service_with_a_failed_default_model_starts_and_is_not_serving(
    broken: FirstModel, caplog: pytest.LogCaptureFixture
) -> None:
    models = [{"name": "broken", "ranker": "first", "path": str(broken.path)}, {"name": "good", "ranker": "pe-rank"}]
    with caplog.at_level(logging.ERROR):
        reranker = load_reranker(load_config(None, listen="127.0.0.1:0", device="cpu", models=models))
    assert "model broken is not served" in caplog.text
    request = pb.RerankRequest(query="q", candidates=numbered_candidates([1, 2, 3]))
    with serving(reranker) as service, grpc.insecure_channel(service.address) as channel:
        names = ["", SERVICE, f"{SERVICE}/good", f"{SERVICE}/broken"]
        assert [health(channel, name) for name in names] == [NOT_SERVING, NOT_SERVING, SERVING, NOT_SERVING]
        stub = RerankServiceStub(channel)
        refused = refusal(lambda: stub.Rerank(request, timeout=TIMEOUT_S))
        assert refused.reason == "SELF_TEST_FAILED"
        assert refused.message.startswith("model 'broken' is not served; self-test: golden.json belongs to weights")
        described = {model.name: model.problem for model in stub.ListModels(pb.ListModelsRequest()).models}
        assert (described["good"], "golden.json belongs to weights" in described["broken"]) == ("", True)
        request.model = "good"
        assert len(stub.Rerank(request, timeout=TIMEOUT_S).results) == 3
