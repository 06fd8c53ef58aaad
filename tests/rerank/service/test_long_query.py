"""A query that is longer than a model or a first stage reads: it is answered, and the reply says so."""

from __future__ import annotations

import pytest

from rerank.v1 import rerank_pb2 as pb
from rerank.v1.rerank_pb2_grpc import RerankServiceStub
from tests.serving import TIMEOUT_S

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
def test_reply_says_that_the_query_was_truncated(
    stub: RerankServiceStub, first_stage: int, model: str, is_truncated: bool
) -> None:
    asked = {"model": model, "depth": 3, "first_stage": first_stage}
    reply = stub.Search(pb.SearchRequest(query=LONG, **asked), timeout=TIMEOUT_S)
    assert reply.results
    assert reply.execution.query_truncated == is_truncated
    short = stub.Search(pb.SearchRequest(query="a flea", **asked), timeout=TIMEOUT_S)
    assert not short.execution.query_truncated
