"""Reranker: ranking in this process without an event loop."""

from __future__ import annotations

import subprocess
import sys
import threading
from inspect import signature
from typing import TYPE_CHECKING, cast

import pytest
from sentence_transformers import CrossEncoder

from rerank import (
    ConfigError,
    FeedbackMethod,
    FirstStage,
    InvalidRequest,
    Query,
    RankOptions,
    Reranker,
    UsageError,
)
from rerank.reranking.blocking import check_arguments
from rerank.v1 import rerank_pb2 as pb
from rerank.v1.rerank_pb2_grpc import RerankServiceStub
from tests.fakes import NumberRanker
from tests.serving import TIMEOUT_S, refusal, reranker_of

if TYPE_CHECKING:
    from rerank.models.encoder import Encoder
    from rerank.retrieval.index import Index

DOCUMENTS = ["Deserts are dry.", "A flea lives a year.", "The moon orbits the earth."]


def test_rank_returns_places_and_falling_scores_best_first() -> None:
    with Reranker("pe-rank") as reranker:
        found = reranker.rank("how long does a flea live", DOCUMENTS)
    assert found[0]["corpus_id"] == 1
    assert {result["corpus_id"] for result in found} == {0, 1, 2}
    assert [result["score"] for result in found] == sorted((result["score"] for result in found), reverse=True)
    assert all(result.keys() == {"corpus_id", "score", "relevance"} for result in found)


def test_min_relevance_leaves_out_what_does_not_answer() -> None:
    with Reranker("pe-rank") as reranker:
        (found,) = reranker.rank("how long does a flea live", DOCUMENTS, min_relevance=0.2)
        assert found["corpus_id"] == 1
        assert found["relevance"] > 0.2
        assert reranker.rank("the capital of France", DOCUMENTS, min_relevance=0.2) == []
        for value in (1.5, float("nan")):
            with pytest.raises(InvalidRequest, match=f"^min_relevance: {value} is not between 0 and 1"):
                reranker.rank("q", DOCUMENTS, min_relevance=value)


def test_relevance_of_the_default_depends_on_query_and_text_alone() -> None:
    """The list is longer than the cosine is deep, and its last text is one that stands above."""
    query, answer = "how long does a flea live", "A flea lives for two to three months."
    others = [f"A flea of kind {number} bites cats and dogs." for number in range(40)]
    with Reranker("default") as reranker:
        (alone,) = reranker.rank(query, [answer])
        found = reranker.rank(query, [answer, "", " ", *others, answer], ordered=True)
        relevance = {result["corpus_id"]: result["relevance"] for result in found}
        assert relevance[0] == relevance[43] == pytest.approx(alone["relevance"], abs=0.01)
        assert relevance[0] > 0.5
        assert relevance[1] == relevance[2] == 0.0
        assert len(relevance) == 44, "those without a cosine have the relevance of their sparse score"
        assert reranker.rank(query, ["Deserts are dry.", "Bread is baked."], min_relevance=0.2) == []


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


def test_predict_scores_the_pairs_of_a_query_in_their_order() -> None:
    pairs = [("how long does a flea live", text) for text in DOCUMENTS]
    with Reranker("pe-rank") as reranker:
        scores = reranker.predict([*pairs, pairs[1]], show_progress_bar=True)
        best = reranker.rank(pairs[0][0], DOCUMENTS)[0]
        assert reranker.predict([]).shape == (0,)  # type: ignore[union-attr]
        assert isinstance(reranker.predict(pairs[0]), float)
        with pytest.raises(InvalidRequest, match=r"^pairs: they have 2 queries, and pe-rank ranks the texts"):
            reranker.predict([*pairs, ("another query", "text")])
        with pytest.raises(InvalidRequest, match="the query is empty"):
            reranker.predict([(" ", "text")])
        for wrong in ("ab", ["q", "a", "b"], [("q", "a", "b")], [7]):
            with pytest.raises(TypeError, match="is not a pair"):
                reranker.predict(wrong)  # type: ignore[arg-type]
    assert (scores.shape, int(scores[:3].argmax())) == ((4,), best["corpus_id"])  # type: ignore[union-attr, index]
    assert scores[1] == scores[3]  # type: ignore[index]


def test_arguments_of_a_cross_encoder_that_cannot_change_scores_are_ignored() -> None:
    pairs = [("q", text) for text in DOCUMENTS]
    kept = {"batch_size": 8, "num_workers": 0, "convert_to_numpy": True, "device": None, "activation_fn": None}
    with Reranker("identity") as reranker:
        assert list(reranker.predict(pairs, show_progress_bar=None, **kept)) == list(reranker.predict(pairs))  # type: ignore[arg-type]
        ranked = reranker.rank("q", DOCUMENTS, batch_size=8, show_progress_bar=True)
        assert ranked == reranker.rank("q", DOCUMENTS)
        with pytest.raises(TypeError, match="apply_softmax would change the result"):
            reranker.predict(pairs, apply_softmax=True)
        with pytest.raises(
            TypeError, match="unexpected argument 'batchsize'; of CrossEncoder's, batch_size, chunk_size"
        ):
            reranker.rank("q", DOCUMENTS, batchsize=8)


def test_every_argument_of_cross_encoders_predict_is_known() -> None:
    names = set(signature(CrossEncoder.predict).parameters) - {"self", "inputs", "kwargs"}
    check_arguments(dict.fromkeys(names))


def test_notebook_shows_rankings_as_html() -> None:
    with Reranker("identity") as reranker:
        ranking = reranker.rerank("q", ["A < B", "second"])
    assert "<td>A &lt; B</td>" in ranking._repr_html_().replace(' style="text-align: left"', "")
    assert str(ranking).splitlines()[1].endswith("A < B")


def test_negative_top_n_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequest, match="top_n: -1 is negative; use 0 or more"):
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


def test_closed_reranker_leaves_none_of_its_threads() -> None:
    before = set(threading.enumerate())
    with Reranker("identity") as reranker:
        reranker.rerank(Query("q"), DOCUMENTS, RankOptions(max_chunks_per_doc=2))
        thread = reranker._wait(reranker._reranker.convert(threading.current_thread))
        own = set(threading.enumerate()) - before
    assert thread in own
    for left in own:
        left.join(timeout=10)
        assert left.name == "tqdm_monitor" or not left.is_alive(), left.name


def test_unknown_name_is_refused_before_anything_is_loaded() -> None:
    with pytest.raises(ConfigError, match=r"'pe-runk' is not one of .*; did you mean pe-rank\?"):
        Reranker("pe-runk")


def test_text_stands_for_its_query() -> None:
    with Reranker("identity") as reranker:
        assert reranker.rerank("q", DOCUMENTS).ranked == reranker.rerank(Query("q"), DOCUMENTS).ranked
        assert len(reranker.rank("q", DOCUMENTS)) == 3
        with pytest.raises(InvalidRequest, match="query: 3 is not a query; give a text or a Query"):
            reranker.rerank(cast(str, 3), DOCUMENTS)


def test_unknown_names_list_the_choices() -> None:
    with Reranker("identity") as reranker:
        with pytest.raises(InvalidRequest, match=r"unknown strategy 'slidng'; did you mean sliding\? choices: single"):
            reranker.rerank("q", DOCUMENTS, RankOptions(strategy="slidng"))
        with pytest.raises(InvalidRequest, match=r"unknown first stage 'bm52'; did you mean bm25\? choices: bm25"):
            reranker.search("q", "bm52")
        with pytest.raises(InvalidRequest, match=r"unknown feedback method 'rochio'; did you mean rocchio\?"):
            reranker.search("q", "dense", feedback="rochio")


async def test_search_takes_names_and_a_text(encoder: Encoder, index: Index) -> None:
    async with reranker_of(encoder, {"number": NumberRanker()}, index) as reranker:
        found = await reranker.search("flea bites", "bm25", 5, RankOptions(strategy="single"))
        fed = await reranker.search("flea bites", "dense", 5, RankOptions(), feedback="rocchio")
        assert repr(reranker) == "<AsyncReranker: number (default); index of 12 passages>"
        with pytest.raises(InvalidRequest, match="ordered: the first stage of a search gives an ordered list"):
            await reranker.search("flea bites", "bm25", 5, RankOptions(ordered=False))
    assert (found.first_stage, found.hits) == (FirstStage.BM25, 2)
    assert fed.feedback is not None
    assert fed.feedback.method is FeedbackMethod.ROCCHIO
    assert repr(found).startswith("<SearchResult: 2 hits of bm25, <Ranking: 2 results by number, single(20): flea")
    assert str(found) == str(found.ranking)


def test_closed_reranker_says_what_to_do() -> None:
    with Reranker("identity") as reranker:
        assert repr(reranker) == "<Reranker: identity (default); no index>"
    with pytest.raises(UsageError, match="this Reranker is closed; make a new one, or use it inside its `with` block"):
        reranker.rank("q", DOCUMENTS)
    assert repr(reranker) == "<closed Reranker: identity (default); no index>"


def test_ranking_prints_as_a_table_and_says_what_it_holds() -> None:
    with Reranker("identity") as reranker:
        ranking = reranker.rerank("q", [(f"d{place}", text) for place, text in enumerate(DOCUMENTS)])
    assert str(ranking).splitlines() == [
        "rank  score  doc_id  text",
        "   1      3  d0      Deserts are dry.",
        "   2      2  d1      A flea lives a year.",
        "   3      1  d2      The moon orbits the earth.",
    ]
    assert repr(ranking) == "<Ranking: 3 results by identity, sliding(20/10): d0, d1, d2>"
    assert repr(ranking.trace).startswith("<Trace: identity, sliding(20/10), 1 windows, 0 tokens, ")


@pytest.mark.slow
def test_process_with_an_open_reranker_ends_without_a_word() -> None:
    program = "from rerank import Reranker; opened = Reranker('identity'); print(opened.rank('q', ['a']))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[{'corpus_id': 0, 'score': 1.0}]\n", "")
