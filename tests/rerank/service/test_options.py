"""Relevance, `min_relevance` and the weight of the first stage over gRPC and HTTP: request before settings."""

from collections.abc import Iterator

import pytest

from rerank.config import PERankModel
from rerank.retrieval.index import Index
from rerank.types import ScoreKind
from rerank.v1 import rerank_pb2 as pb
from tests.fakes import NumberRanker
from tests.serving import METRICS, TIMEOUT_S, Served, http_service


@pytest.fixture(scope="module")
def served(index: Index) -> Iterator[Served]:
    """A service with "probability", whose scores are probabilities, and "number", which gives no relevance."""
    ranker = NumberRanker(score_kind=ScoreKind.POINTWISE_PROBABILITY, relevance="score")
    with http_service({"probability": ranker, "number": NumberRanker()}, index) as opened:
        yield opened


@pytest.mark.parametrize("feedback", [None, pb.Feedback()])
def test_search_leaves_out_what_is_below_the_least_after_all_rankings(served, feedback):
    whole = served.stub.Search(pb.SearchRequest(query="flea", feedback=feedback), timeout=TIMEOUT_S)
    kept = served.stub.Search(pb.SearchRequest(query="flea", feedback=feedback, min_relevance=0.5), timeout=TIMEOUT_S)
    assert 0 < len(kept.results) < len(whole.results)
    assert [row.doc_id for row in kept.results] == [row.doc_id for row in whole.results if row.relevance >= 0.5]
    assert kept.first_stage_hits == whole.first_stage_hits


def test_models_say_whether_they_give_relevance(served):
    models = served.stub.ListModels(pb.ListModelsRequest(), timeout=TIMEOUT_S).models
    assert {model.name: model.gives_relevance for model in models} == {"probability": True, "number": False}
    assert [model["gives_relevance"] for model in served.http.get("/v1/models").json["data"]] == [True, False]


@pytest.fixture(scope="module")
def weighted() -> Iterator[Served]:
    """A service whose callers' first stage has the weight .5, and its model .25, unless they say otherwise."""
    models = [PERankModel(name="number", ranker="pe-rank", first_stage_weight=0.25)]
    settings = {"models": models, "first_stage_weight": 0.5, "telemetry": METRICS}
    with http_service({"number": NumberRanker()}, **settings) as opened:
        yield opened


def execution(served: Served, weight: pb.FirstStageWeight | None) -> pb.Execution:
    candidates = [pb.Candidate(doc_id=f"d{n}", text=str(n), first_stage_score=-float(n**2)) for n in range(3)]
    request = pb.RerankRequest(query="q", candidates=candidates, first_stage_weight=weight)
    return served.stub.Rerank(request, timeout=TIMEOUT_S).execution


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
def test_request_comes_before_the_settings(weighted, asked, weight):
    assert execution(weighted, asked).first_stage_weight == weight


@pytest.mark.parametrize(
    ("given", "weight"),
    [("neural", 0.25), ("FIRST_STAGE_KIND_NEURAL", 0.25), (0.75, 0.75), ({"number": 1}, 1.0), ({"kind": "auto"}, 0.25)],
)
def test_http_takes_a_number_or_the_name_of_a_kind(weighted, given, weight):
    body = {"query": "q", "candidates": [{"doc_id": f"d{n}", "text": str(n)} for n in range(3)]}
    reply = weighted.http.post("/rerank", {**body, "first_stage_weight": given})
    assert reply.json["execution"]["first_stage_weight"] == weight


def test_metrics_have_the_mean_of_kendalls_tau(weighted):
    taus = [execution(weighted, pb.FirstStageWeight(number=n)).kendall_tau for n in (0, 100)]
    assert taus == [-1.0, 1.0]
    assert weighted.metric("rerank_first_stage_kendall_tau_count", model="number") >= len(taus)
