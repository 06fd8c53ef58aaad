"""Search with relevance feedback, over a real socket."""

from __future__ import annotations

import grpc
import numpy as np
import pytest

from rerank.models.encoder import Encoder
from rerank.retrieval.index import Index
from rerank.v1 import rerank_pb2 as pb
from rerank.v1.rerank_pb2_grpc import RerankServiceStub
from tests.conftest import PASSAGES
from tests.serving import TIMEOUT_S, refusal

QUERY = "how long does a flea live"
VECTOR_STAGES = [pb.FIRST_STAGE_DENSE, pb.FIRST_STAGE_HYBRID_RRF, pb.FIRST_STAGE_HYBRID_Z_SCORE]
#: Four passages teach; a step of this size turns the vector enough to find others.
FAR = pb.Feedback(learning_rate=0.05, min_cosine=0.3)


def search(stub: RerankServiceStub, **fields: object) -> pb.SearchResponse:
    request = {"query": QUERY, "depth": 4, "first_stage": pb.FIRST_STAGE_DENSE, "feedback": pb.Feedback()} | fields
    return stub.Search(pb.SearchRequest(**request), timeout=TIMEOUT_S)


def doc_ids(reply: pb.SearchResponse) -> list[str]:
    return [result.doc_id for result in reply.results]


@pytest.mark.parametrize("first_stage", VECTOR_STAGES)
@pytest.mark.parametrize("method", pb.FeedbackMethod.values())
def test_answer_is_the_union_of_both_retrievals(stub: RerankServiceStub, first_stage: int, method: int) -> None:
    feedback = pb.Feedback(method=method, learning_rate=0.05, min_cosine=0.3)
    without = search(stub, first_stage=first_stage, feedback=None)
    reply = search(stub, first_stage=first_stage, feedback=feedback)
    assert not without.HasField("feedback")
    assert set(doc_ids(without)) <= set(doc_ids(reply))
    assert len(set(doc_ids(reply))) == len(reply.results) == reply.first_stage_hits + reply.feedback.new_passages
    assert sorted(result.original_position for result in reply.results) == [*range(len(reply.results))]
    assert reply.feedback.moved, reply.feedback.reason
    assert reply.feedback.loss_after < reply.feedback.loss_before
    assert 0.3 - 1e-5 <= reply.feedback.cosine < 1


def test_what_is_new_stands_behind_the_first_stage_in_original_position(stub: RerankServiceStub) -> None:
    first = search(stub, feedback=None)
    reply = search(stub, model="identity", feedback=FAR)
    assert reply.feedback.new_passages > 0
    position = {result.doc_id: result.original_position for result in reply.results}
    assert {doc_id: position[doc_id] for doc_id in doc_ids(first)} == {
        result.doc_id: result.original_position for result in first.results
    }
    assert min(position[doc_id] for doc_id in set(position) - set(doc_ids(first))) == first.first_stage_hits


def test_new_passages_are_what_the_moved_vector_finds(stub: RerankServiceStub, index: Index, encoder: Encoder) -> None:
    """With one passage far above another, the moved vector has a cosine with the new ones that fits their scores."""
    reply = search(stub, model="identity", feedback=FAR)
    query = encoder.encode([QUERY])[0]
    new = [result for result in reply.results if result.original_position >= reply.first_stage_hits]
    assert new
    for result in new:
        (passage,) = index.store.passages([result.doc_id])
        assert passage.vector is not None
        assert result.first_stage_score != pytest.approx(float(np.dot(query, passage.vector)), abs=1e-4)
        assert -1 <= result.first_stage_score <= 1


def test_report_says_where_the_time_went(stub: RerankServiceStub) -> None:
    report = search(stub, feedback=FAR).feedback
    assert report.method == pb.FEEDBACK_METHOD_WEIGHTED_RANKNET
    spent = report.first_ranking_ms, report.move_ms, report.second_retrieval_ms, report.second_ranking_ms
    assert all(ms > 0 for ms in spent)
    assert report.reason == ""


def test_where_everything_was_found_already_there_is_no_second_ranking(stub: RerankServiceStub) -> None:
    reply = search(stub, depth=len(PASSAGES))
    assert reply.feedback.moved
    assert (reply.feedback.new_passages, reply.feedback.second_ranking_ms) == (0, 0)
    assert list(reply.results) == list(search(stub, depth=len(PASSAGES), feedback=None).results)


def test_one_candidate_teaches_nothing_and_the_reply_says_so(stub: RerankServiceStub) -> None:
    reply = search(stub, depth=1)
    assert not reply.feedback.moved
    assert reply.feedback.reason == "fewer than two ranked passages have a vector"
    assert (reply.feedback.cosine, reply.feedback.new_passages) == (1, 0)
    assert list(reply.results) == list(search(stub, depth=1, feedback=None).results)


def test_kl_without_scores_leaves_the_vector_and_says_so(stub: RerankServiceStub) -> None:
    feedback = pb.Feedback(method=pb.FEEDBACK_METHOD_KL)
    reply = search(stub, model="number", feedback=feedback, strategy=pb.Strategy(window_size=2))
    assert not reply.feedback.moved
    assert reply.feedback.reason == "kl reads scores, and this ranking has ranks only; use weighted-ranknet"
    assert len(reply.results) == 4


@pytest.mark.parametrize("feedback", [FAR, pb.Feedback(top_k=2, learning_rate=1e-6)])
def test_top_n_is_a_prefix(stub: RerankServiceStub, feedback: pb.Feedback) -> None:
    assert doc_ids(search(stub, feedback=feedback, top_n=3)) == doc_ids(search(stub, feedback=feedback))[:3]


def test_bm25_is_refused(stub: RerankServiceStub) -> None:
    answer = refusal(lambda: search(stub, first_stage=pb.FIRST_STAGE_BM25))
    assert (answer.code, answer.fields) == (grpc.StatusCode.INVALID_ARGUMENT, ["feedback"])
    assert "bm25 has no query vector" in answer.message


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("method", 99),
        ("top_k", 1),
        ("top_k", 201),
        ("top_k", -1),
        ("steps", 201),
        ("steps", -1),
        ("learning_rate", -0.1),
        ("learning_rate", 1.1),
        ("learning_rate", float("nan")),
        ("min_cosine", -0.1),
        ("min_cosine", 1.0),
        ("min_cosine", float("nan")),
    ],
)
def test_values_out_of_range_are_refused(stub: RerankServiceStub, field: str, value: float) -> None:
    answer = refusal(lambda: search(stub, feedback=pb.Feedback(**{field: value})))
    assert (answer.code, answer.fields) == (grpc.StatusCode.INVALID_ARGUMENT, [f"feedback.{field}"])
