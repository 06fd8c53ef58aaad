"""Search over a real socket: with relevance feedback, and for a query longer than a model or first stage reads."""

import grpc
import numpy as np
import pytest

from rerank.v1 import rerank_pb2 as pb
from rerank.v1.rerank_pb2_grpc import RerankServiceStub
from tests.serving import TIMEOUT_S, doc_ids, refusal

QUERY = "how long does a flea live"
VECTOR_STAGES = [pb.FIRST_STAGE_DENSE, pb.FIRST_STAGE_HYBRID_RRF, pb.FIRST_STAGE_HYBRID_Z_SCORE]
#: With four candidates, steps of this size turn the vector far enough to find other passages.
LARGE_STEPS = pb.Feedback(steps=20, learning_rate=0.05, min_cosine=0.3)
#: Methods that need an E2Rank model, or a cascade.
OF_SOME_MODELS = (pb.FEEDBACK_METHOD_E2RANK, pb.FEEDBACK_METHOD_CHAIN)


def search(stub: RerankServiceStub, **fields: object) -> pb.RerankResponse:
    request = {"query": QUERY, "depth": 4, "first_stage": pb.FIRST_STAGE_DENSE, "feedback": pb.Feedback()} | fields
    return stub.Search(pb.SearchRequest(**request), timeout=TIMEOUT_S)


@pytest.mark.parametrize("first_stage", VECTOR_STAGES)
@pytest.mark.parametrize("method", [number for number in pb.FeedbackMethod.values() if number not in OF_SOME_MODELS])
def test_response_is_the_union_of_both_retrievals(stub, first_stage, method):
    feedback = pb.Feedback(method=method, steps=20, learning_rate=0.05, min_cosine=0.3)
    without = search(stub, first_stage=first_stage, feedback=None)
    reply = search(stub, first_stage=first_stage, feedback=feedback)
    assert not without.HasField("feedback")
    assert set(doc_ids(without)) <= set(doc_ids(reply))
    assert len(set(doc_ids(reply))) == len(reply.results) >= reply.first_stage_hits
    assert sorted(result.original_position for result in reply.results) == [*range(len(reply.results))]
    assert reply.feedback.reason == ""
    assert 0.3 - 1e-5 <= reply.feedback.cosine < 1


def test_chain_follows_the_preranker_of_a_cascade_and_then_its_model(stub):
    cascade = pb.Strategy(kind=pb.STRATEGY_KIND_CASCADE, preranker="pe-rank")
    chain = pb.Feedback(method=pb.FEEDBACK_METHOD_CHAIN, steps=20, learning_rate=0.05, min_cosine=0.3)
    reply = search(stub, model="number", strategy=cascade, feedback=chain)
    assert reply.feedback.reason == ""
    by_scores = search(stub, feedback=pb.Feedback(method=pb.FEEDBACK_METHOD_KL))  # the texts have no number to rank by
    assert by_scores.feedback.reason == ""
    assert 0.3 - 1e-5 <= reply.feedback.cosine < 1
    assert len(reply.results) > reply.first_stage_hits


def test_chain_without_a_cascade_is_refused(stub):
    chain = pb.Feedback(method=pb.FEEDBACK_METHOD_CHAIN)
    refused = refusal(lambda: search(stub, model="identity", feedback=chain))
    assert refused.code == grpc.StatusCode.INVALID_ARGUMENT
    assert "identity ranks alone; ask for the strategy cascade, or another method" in refused.message


def test_new_passages_are_scored_by_the_updated_vector(stub, index, encoder):
    reply = search(stub, model="identity", feedback=LARGE_STEPS)
    query = encoder.encode_passages([QUERY])[0]
    new = [result for result in reply.results if result.original_position >= reply.first_stage_hits]
    assert new
    for result in new:
        (passage,) = index.store.passages([result.doc_id])
        assert result.first_stage_score != pytest.approx(float(np.dot(query, passage.vector)), abs=1e-4)
        assert -1 <= result.first_stage_score <= 1


#: More than the 254 word pieces that the encoder reads.
LONG = "how long does a flea live " * 100


@pytest.mark.parametrize(
    ("first_stage", "model", "is_truncated"),
    [
        (pb.FIRST_STAGE_BM25, "identity", False),
        (pb.FIRST_STAGE_BM25, "pe-rank", True),
        (pb.FIRST_STAGE_DENSE, "identity", True),
        (pb.FIRST_STAGE_HYBRID_RRF, "pe-rank", True),
    ],
)
def test_reply_says_that_the_query_was_truncated(stub, first_stage, model, is_truncated):
    asked = {"model": model, "depth": 3, "first_stage": first_stage}
    reply = stub.Search(pb.SearchRequest(query=LONG, **asked), timeout=TIMEOUT_S)
    assert reply.results
    assert reply.execution.query_truncated == is_truncated
    short = stub.Search(pb.SearchRequest(query="a flea", **asked), timeout=TIMEOUT_S)
    assert not short.execution.query_truncated
