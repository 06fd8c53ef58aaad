"""Reranker: ranking in this process without an event loop."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from rerank import ConfigError, InvalidRequest, Query, RankOptions, Reranker
from rerank.v1 import rerank_pb2 as pb
from rerank.v1.rerank_pb2_grpc import RerankServiceStub
from tests.serving import TIMEOUT_S, refusal

DOCUMENTS = ["Deserts are dry.", "A flea lives a year.", "The moon orbits the earth."]


def test_rank_returns_places_and_falling_scores_best_first() -> None:
    with Reranker("pe-rank") as reranker:
        found = reranker.rank("how long does a flea live", DOCUMENTS)
    assert found[0]["corpus_id"] == 1
    assert {each["corpus_id"] for each in found} == {0, 1, 2}
    assert [each["score"] for each in found] == sorted((each["score"] for each in found), reverse=True)
    assert all(each.keys() == {"corpus_id", "score"} for each in found)


def test_rank_cuts_to_top_k_and_returns_texts_on_request() -> None:
    with Reranker("identity") as reranker:
        assert reranker.rank("q", DOCUMENTS, top_k=2, return_documents=True, ordered=True) == [
            {"corpus_id": 0, "score": 3.0, "text": DOCUMENTS[0]},
            {"corpus_id": 1, "score": 2.0, "text": DOCUMENTS[1]},
        ]
        assert reranker.rank("q", []) == []


@pytest.mark.parametrize("top_k", [-1, 0])
def test_top_k_below_one_is_refused_by_name(top_k: int) -> None:
    with (
        Reranker("identity") as reranker,
        pytest.raises(InvalidRequest, match=f"^top_k: {top_k} is below 1; use a number from 1, or None for all"),
    ):
        reranker.rank("q", DOCUMENTS, top_k=top_k)


def test_negative_top_n_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequest, match="top_n: -1 is negative; use 0 for all"):
        RankOptions(top_n=-1)


@pytest.mark.parametrize("query", ["", " \n", "\x00"])
def test_empty_query_is_refused_as_the_service_refuses_it(query: str, stub: RerankServiceStub) -> None:
    request = pb.RerankRequest(query=query, candidates=[pb.Candidate(doc_id="a", text="a")])
    served = refusal(lambda: stub.Rerank(request, timeout=TIMEOUT_S)).message
    with Reranker("identity") as reranker:
        for call in (
            lambda: reranker.rank(query, DOCUMENTS),
            lambda: reranker.rank(query, []),
            lambda: reranker.rerank(Query(query), DOCUMENTS),
            lambda: reranker.search(Query(query)),
        ):
            with pytest.raises(InvalidRequest) as caught:
                call()
            assert str(caught.value) == served


def test_closed_twice_is_closed_and_leaves_no_thread() -> None:
    reranker = Reranker("identity")
    assert len(reranker.rerank(Query("q"), DOCUMENTS).ranked) == 3
    reranker.close()
    reranker.close()
    assert "reranker" not in {thread.name for thread in threading.enumerate()}


def test_unknown_name_is_refused_before_anything_is_loaded() -> None:
    with pytest.raises(ConfigError, match="'pe-runk' is none of"):
        Reranker("pe-runk")


@pytest.mark.slow
def test_process_with_an_open_reranker_ends_without_a_word() -> None:
    program = "from rerank import Reranker; opened = Reranker('identity'); print(opened.rank('q', ['a']))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[{'corpus_id': 0, 'score': 1.0}]\n", "")
