"""A FIRST model from a local checkpoint, configured and called over a real socket."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest

from rerank.config import load_config
from rerank.reranker import load_reranker
from rerank.v1 import rerank_pb2 as pb
from rerank.v1.rerank_pb2_grpc import RerankServiceStub
from tests.causal_lms import write_causal_lm
from tests.serving import TIMEOUT_S, refusal, serving
from tests.small_tokenizers import byte_level


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RerankServiceStub]:
    checkpoint = write_causal_lm(tmp_path_factory.mktemp("first") / "tiny", "llama", byte_level())
    models = [{"name": "first", "ranker": "first", "path": str(checkpoint)}, {"name": "pe-rank", "ranker": "pe-rank"}]
    config = load_config(None, listen="127.0.0.1:0", device="cpu", models=models)
    with serving(load_reranker(config)) as service, grpc.insecure_channel(service.address) as channel:
        yield RerankServiceStub(channel)


def request(n: int, **strategy: object) -> pb.RerankRequest:
    candidates = [pb.Candidate(doc_id=f"d{place}", text=f"passage number {place}") for place in range(n)]
    return pb.RerankRequest(query="which one", candidates=candidates, strategy=pb.Strategy(**strategy))


@pytest.mark.parametrize(
    "strategy",
    [
        {"kind": pb.STRATEGY_KIND_SINGLE, "window_size": 30},
        {"kind": pb.STRATEGY_KIND_SLIDING},
        {"kind": pb.STRATEGY_KIND_SLIDING, "early_stop": True},
        {"kind": pb.STRATEGY_KIND_TOP_DOWN},
        {"kind": pb.STRATEGY_KIND_TOURNAMENT},
        {"kind": pb.STRATEGY_KIND_CASCADE, "preranker": "pe-rank"},
    ],
    ids=str,
)
def test_every_strategy_returns_a_permutation(stub: RerankServiceStub, strategy: dict[str, object]) -> None:
    reply = stub.Rerank(request(30, **strategy), timeout=TIMEOUT_S)
    assert sorted(result.original_position for result in reply.results) == list(range(30))
    assert (reply.execution.model, reply.execution.ranker) == ("first", "first")
    assert reply.execution.tokens > 300
    assert len(reply.execution.template_sha256) == 64


def test_scores_of_one_window_are_log_probabilities(stub: RerankServiceStub) -> None:
    reply = stub.Rerank(request(5), timeout=TIMEOUT_S)
    assert reply.score_kind == pb.SCORE_KIND_WINDOW_LOG_PROB
    assert reply.results[0].score < 0


def test_window_with_more_passages_than_identifiers_is_refused(stub: RerankServiceStub) -> None:
    refused = refusal(lambda: stub.Rerank(request(60, window_size=53), timeout=TIMEOUT_S))
    assert refused.code is grpc.StatusCode.INVALID_ARGUMENT
    assert "use at most 52" in refused.message
