"""The three methods over a real socket: Rerank, Search and ListModels."""

import random
from collections.abc import Sequence
from itertools import pairwise

import grpc
import pytest

from rerank.v1 import rerank_pb2 as pb
from rerank.v1.rerank_pb2_grpc import RerankServiceStub
from tests.conftest import PASSAGES
from tests.serving import TIMEOUT_S, doc_ids, numbered_candidates, references, refusal, running_service

QUERY = "how long does a flea live"
TOLERANCE = 1e-5  # of scores, which depend slightly on the other windows of the batch


def rerank(stub: RerankServiceStub, candidates: Sequence[pb.Candidate], **fields: object) -> pb.RerankResponse:
    request = pb.RerankRequest(**{"query": QUERY, "candidates": candidates} | fields)
    return stub.Rerank(request, timeout=TIMEOUT_S)


def search(stub: RerankServiceStub, query: str = QUERY, **fields: object) -> pb.RerankResponse:
    return stub.Search(pb.SearchRequest(query=query, **fields), timeout=TIMEOUT_S)


def scores(reply: pb.RerankResponse) -> list[float]:
    return [result.score for result in reply.results]


def assert_strictly_decreasing(reply: pb.RerankResponse) -> None:
    assert all(above > below for above, below in pairwise(scores(reply)))


@pytest.mark.parametrize("n", [1, 2, 19, 20, 21, 100])
def test_response_is_a_permutation_with_strictly_decreasing_scores(stub, n):
    numbers = random.Random(n).sample(range(n), n)
    reply = rerank(stub, numbered_candidates(numbers), model="number", strategy=pb.Strategy(window_size=100))
    assert doc_ids(reply) == [f"d{numbers.index(number)}" for number in sorted(numbers, reverse=True)]
    assert [f"d{result.original_position}" for result in reply.results] == doc_ids(reply)
    assert_strictly_decreasing(reply)


def test_reference_reads_text_and_vector_from_the_index(stub):
    reply = rerank(stub, references(*PASSAGES), return_passages=True)
    assert {result.doc_id: result.text for result in reply.results} == {
        doc_id: " ".join(row) for doc_id, row in PASSAGES.items()
    }
    sent = rerank(stub, [pb.Candidate(doc_id=doc_id, text=" ".join(row)) for doc_id, row in PASSAGES.items()])
    assert doc_ids(reply) == doc_ids(sent)
    assert scores(reply) == pytest.approx(scores(sent), abs=TOLERANCE)


def test_passages_come_back_as_they_were_sent_with_title_and_text_apart(stub):
    """The places of a span count in the text; the model reads the title in front of it."""
    sent = [("a", "Fleas", "They bite."), ("b", "", "Dry."), ("c", "Moon", "Moon and tides."), ("d", "", "")]
    candidates = [pb.Candidate(doc_id=doc_id, title=title, text=text) for doc_id, title, text in sent]
    reply = rerank(stub, candidates, return_passages=True)
    found = sorted((result.doc_id, result.title, result.text) for result in reply.results)
    assert found == [("a", "Fleas", "They bite."), ("b", "", "Dry."), ("c", "", "Moon and tides."), ("d", "", "")]
    assert not any(result.title or result.text for result in rerank(stub, candidates).results)


def test_text_of_the_request_is_used_with_the_vector_of_the_index(stub):
    candidates = [
        pb.Candidate(doc_id=doc_id, in_index=True, text="1" if doc_id == "flea" else "2") for doc_id in PASSAGES
    ]
    by_vector = rerank(stub, candidates, return_passages=True)
    assert doc_ids(by_vector) == doc_ids(rerank(stub, references(*PASSAGES)))
    assert {result.text for result in by_vector.results} == {"1", "2"}
    assert doc_ids(rerank(stub, candidates, model="number"))[-1] == "flea"


def test_execution_describes_model_strategy_and_cost(stub):
    texts = [pb.Candidate(doc_id=doc_id, text=text) for doc_id, (_, text) in PASSAGES.items()]
    execution = rerank(stub, texts).execution
    model = stub.ListModels(pb.ListModelsRequest()).models[0]
    assert [len(model.model_revision), len(model.template_sha256)] == [64, 64]
    assert execution.model == model.name == "pe-rank"
    assert (execution.strategy, execution.windows, execution.rounds) == ("sliding(20/10)", 1, 1)
    assert (execution.completeness, execution.reason) == (pb.COMPLETENESS_FULL, "")
    assert execution.tokens > len(PASSAGES)
    assert min(execution.prepare_ms, execution.model_ms) > 0
    assert execution.queue_ms >= 0
    assert execution.total_ms >= execution.prepare_ms + execution.model_ms


@pytest.mark.parametrize("stage", pb.FirstStage.keys())
def test_search_reranks_the_results_of_the_first_stage(stub, stage):
    found = search(stub, first_stage=stage, model="identity", return_passages=True)
    reranked = search(stub, first_stage=stage)
    assert len(found.results) == found.first_stage_hits == reranked.first_stage_hits > 0
    assert sorted(doc_ids(reranked)) == sorted(doc_ids(found))
    assert [result.original_position for result in found.results] == list(range(len(found.results)))
    assert [doc_ids(found)[result.original_position] for result in reranked.results] == doc_ids(reranked)
    assert doc_ids(reranked)[0] == "flea"
    assert_strictly_decreasing(reranked)
    assert all(result.text == " ".join(PASSAGES[result.doc_id]) for result in found.results)
    first_stage_scores = [result.first_stage_score for result in found.results]
    assert first_stage_scores == sorted(first_stage_scores, reverse=True)
    assert reranked.execution.model == "pe-rank"


def test_search_equals_the_first_stage_followed_by_rerank(stub):
    found = search(stub, model="identity")
    reranked = rerank(stub, references(*doc_ids(found)))
    searched = search(stub)
    assert doc_ids(searched) == doc_ids(reranked)
    assert scores(searched) == pytest.approx(scores(reranked), abs=TOLERANCE)


@pytest.mark.parametrize("model", ["pe-rank", "identity"])
def test_search_without_candidates_is_an_empty_response(stub, model):
    reply = search(stub, "qqzzx", first_stage=pb.FIRST_STAGE_BM25, model=model)
    assert (len(reply.results), reply.first_stage_hits, reply.execution.windows) == (0, 0, 0)


def test_list_models_describes_models_and_index(stub, encoder):
    reply = stub.ListModels(pb.ListModelsRequest(), timeout=TIMEOUT_S)
    assert [model.name for model in reply.models] == ["pe-rank", "identity", "number"]
    assert {model.default_strategy for model in reply.models} == {"sliding(20/10)"}
    assert min(model.max_window_size for model in reply.models) >= 20
    assert reply.index == pb.Index(collection="twelve", passages=len(PASSAGES), encoder=encoder.id.name)


def test_search_and_references_are_refused_without_an_index():
    with running_service() as served:
        for call in (lambda: search(served.stub), lambda: rerank(served.stub, references("a"))):
            error = refusal(call)
            assert (error.code, error.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "NOT_CONFIGURED")
            assert "--index" in error.message
        assert not served.stub.ListModels(pb.ListModelsRequest(), timeout=TIMEOUT_S).HasField("index")
