"""An E2Rank model retrieves, ranks and searches again with the vector that it made of the list."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from rerank.collections import open_collection
from rerank.config import E2RankModel, EncoderConfig
from rerank.models.encoder import Encoder
from rerank.rankers.base import Ranker, rank_windows
from rerank.rankers.identity import IdentityRanker
from rerank.reranking.load_models import E2RANK_END_TOKEN, load_ranker, with_path
from rerank.retrieval.build import build_index
from rerank.retrieval.index import Index
from rerank.types import FirstStage, Query, Window
from rerank.v1 import rerank_pb2 as pb
from rerank.v1.rerank_pb2_grpc import RerankServiceStub
from tests.serving import TIMEOUT_S, refusal, running_service
from tests.small_encoder import write_qwen_model

QUERY = "how long does a flea live"


@pytest.fixture(scope="module")
def e2rank(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    folder = write_qwen_model(tmp_path_factory.mktemp("models") / "e2rank")
    return Encoder(EncoderConfig(name=str(folder), pooling="lasttoken", end_token=E2RANK_END_TOKEN), "cpu")


@pytest.fixture(scope="module")
def index(beir_folder: Path, e2rank: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Index:
    out = tmp_path_factory.mktemp("indexes") / "twelve"
    build_index(open_collection(str(beir_folder)), out, e2rank)
    return Index(out, e2rank)


@pytest.fixture(scope="module")
def ranker(e2rank: Encoder) -> Ranker:
    model = E2RankModel(name="e2rank", ranker="e2rank", precision="float32")
    return load_ranker(with_path(model, e2rank), e2rank, "cpu")


@pytest.fixture(scope="module")
def stub(e2rank: Encoder, ranker: Ranker, index: Index) -> Iterator[RerankServiceStub]:
    rankers = {"e2rank": ranker, "identity": IdentityRanker()}
    with running_service(rankers, index, encoder=e2rank) as served:
        yield served.stub


def search(stub: RerankServiceStub, **fields: object) -> pb.RerankResponse:
    given = {"query": QUERY, "model": "e2rank", "depth": 4, "first_stage": pb.FIRST_STAGE_DENSE} | fields
    return stub.Search(pb.SearchRequest(**given), timeout=TIMEOUT_S)


def test_feedback_searches_again_with_the_vector_of_the_list(stub, ranker, e2rank, index):
    query = e2rank.with_vector(Query(QUERY))
    first = index.candidates(FirstStage.DENSE, query, 4)
    prepared = ranker.prepare(query, list(first))
    vector = rank_windows(ranker, [Window(prepared.query, prepared.passages)])[0].query_vector
    second = index.candidates(FirstStage.DENSE, replace(query, vector=vector), 4)
    reply = search(stub, feedback=pb.Feedback(method=pb.FEEDBACK_METHOD_E2RANK))
    assert {result.doc_id for result in reply.results} == {candidate.doc_id for candidate in (*first, *second)}
    assert reply.feedback.reason == ""
    assert len(reply.results) > reply.first_stage_hits == 4
    assert reply.feedback.cosine == pytest.approx(float(vector @ query.vector), abs=1e-5)


def test_feedback_by_a_model_that_makes_no_vector_is_refused(stub):
    feedback = pb.Feedback(method=pb.FEEDBACK_METHOD_E2RANK)
    refused = refusal(lambda: search(stub, model="identity", feedback=feedback))
    assert refused.code == grpc.StatusCode.INVALID_ARGUMENT
    assert "model identity makes no vector of a query" in refused.message
    assert "use e2rank, or another method" in refused.message
