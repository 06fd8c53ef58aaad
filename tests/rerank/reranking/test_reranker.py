"""Reranker: ranking in this process, with an event loop and without; what a ranking says of a model's output."""

import os
import subprocess
import sys
import threading
from array import array
from inspect import signature

import numpy as np
import pytest
from sentence_transformers import CrossEncoder

from rerank import FirstStage, InvalidRequest, Query, RankOptions, Reranker, UsageError
from rerank.reranking.blocking import check_arguments
from rerank.types import Passage, StrategyKind, TextTokens
from rerank.v1 import rerank_pb2 as pb
from tests.fakes import NumberRanker, numbered_passages, rambling_ranker
from tests.serving import TIMEOUT_S, refusal, reranker_of

DOCUMENTS = ["Deserts are dry.", "A flea lives a year.", "The moon orbits the earth."]


def test_rank_returns_places_and_falling_scores_best_first():
    with Reranker("pe-rank") as reranker:
        found = reranker.rank("how long does a flea live", DOCUMENTS)
    assert found[0]["corpus_id"] == 1
    assert {result["corpus_id"] for result in found} == {0, 1, 2}
    assert [result["score"] for result in found] == sorted((result["score"] for result in found), reverse=True)
    assert all(result.keys() == {"corpus_id", "score", "relevance"} for result in found)


def test_rank_cuts_to_top_k_and_returns_texts_on_request():
    with Reranker("identity") as reranker:
        assert reranker.rank("q", DOCUMENTS, top_k=2, return_documents=True, ordered=True) == [
            {"corpus_id": 0, "score": 3.0, "text": DOCUMENTS[0]},
            {"corpus_id": 1, "score": 2.0, "text": DOCUMENTS[1]},
        ]
        assert reranker.rank("q", []) == []


@pytest.mark.parametrize(
    "known",
    [
        {"vector": np.ones(4, np.float32)},
        {"vector_truncated": True},
        {"sparse_score": 1.0},
        {"stems": ("old",)},
        {"prefix_chars": 3},
        {"tokens": TextTokens(array("i"), array("i"), array("i"))},
    ],
)
async def test_what_is_known_of_a_passage_from_elsewhere_is_not_used(known):
    """Another encoder or model may have computed it."""
    async with reranker_of({"number": NumberRanker()}) as reranker:
        (result,) = (await reranker.rerank("q", [Passage("a", "1", **known)], RankOptions())).ranked
    assert result.passage == Passage("a", "1")
    assert (result.passage.vector, result.passage.tokens, result.passage.stems) == (None, None, None)


@pytest.mark.parametrize("top_k", [-1, 0])
def test_top_k_below_one_is_refused_by_name(top_k):
    with (
        Reranker("identity") as reranker,
        pytest.raises(InvalidRequest, match=f"^top_k: {top_k} is below 1; use a number from 1, or None for all"),
    ):
        reranker.rank("q", DOCUMENTS, top_k=top_k)


def test_predict_scores_the_pairs_of_a_query_in_their_order():
    pairs = [("how long does a flea live", text) for text in DOCUMENTS]
    with Reranker("pe-rank") as reranker:
        scores = reranker.predict([*pairs, pairs[1]], show_progress_bar=True)
        best = reranker.rank(pairs[0][0], DOCUMENTS)[0]
        assert reranker.predict([]).shape == (0,)
        assert isinstance(reranker.predict(pairs[0]), float)
        with pytest.raises(InvalidRequest, match=r"^pairs: they have 2 queries, and pe-rank ranks the texts"):
            reranker.predict([*pairs, ("another query", "text")])
        with pytest.raises(InvalidRequest, match="the query is empty"):
            reranker.predict([(" ", "text")])
        for wrong in ("ab", ["q", "a", "b"], [("q", "a", "b")], [7]):
            with pytest.raises(TypeError, match="is not a pair"):
                reranker.predict(wrong)
    assert (scores.shape, int(scores[:3].argmax())) == ((4,), best["corpus_id"])
    assert scores[1] == scores[3]


def test_arguments_of_a_cross_encoder_that_cannot_change_scores_are_ignored():
    pairs = [("q", text) for text in DOCUMENTS]
    kept = {"batch_size": 8, "num_workers": 0, "convert_to_numpy": True, "device": None, "activation_fn": None}
    with Reranker("identity") as reranker:
        assert list(reranker.predict(pairs, show_progress_bar=None, **kept)) == list(reranker.predict(pairs))
        ranked = reranker.rank("q", DOCUMENTS, batch_size=8, show_progress_bar=True)
        assert ranked == reranker.rank("q", DOCUMENTS)
        with pytest.raises(TypeError, match="apply_softmax would change the result"):
            reranker.predict(pairs, apply_softmax=True)
        message = "unexpected argument 'batchsize'; of CrossEncoder's, batch_size, chunk_size"
        with pytest.raises(TypeError, match=message):
            reranker.rank("q", DOCUMENTS, batchsize=8)


def test_every_argument_of_cross_encoders_predict_is_known():
    names = set(signature(CrossEncoder.predict).parameters) - {"self", "inputs", "kwargs"}
    check_arguments(dict.fromkeys(names))


@pytest.mark.parametrize("query", ["", " \n", "\x00"])
def test_empty_query_is_refused_as_the_service_refuses_it(query, stub):
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


def test_closed_reranker_leaves_none_of_its_threads():
    before = set(threading.enumerate())
    with Reranker("identity") as reranker:
        reranker.rerank(Query("q"), DOCUMENTS, RankOptions(max_chunks_per_doc=2))
        thread = reranker._wait(reranker._reranker.convert(threading.current_thread))
        own = set(threading.enumerate()) - before
    assert thread in own
    for left in own:
        left.join(timeout=10)
        assert left.name == "tqdm_monitor" or not left.is_alive(), left.name


async def test_search_takes_names_and_a_text(index):
    async with reranker_of({"number": NumberRanker()}, index) as reranker:
        found = await reranker.search("flea bites", "bm25", 5, RankOptions(strategy="single"))
        fed = await reranker.search("flea bites", "dense", 5, RankOptions(), feedback="rocchio")
        assert repr(reranker) == "<AsyncReranker: number (default); index of 12 passages>"
        with pytest.raises(InvalidRequest, match="ordered: the first stage of a search gives an ordered list"):
            await reranker.search("flea bites", "bm25", 5, RankOptions(ordered=False))
    assert (found.first_stage, found.hits) == (FirstStage.BM25, 2)
    assert fed.feedback.reason == ""
    assert repr(found).startswith("<SearchResult: 2 hits of bm25, <Ranking: 2 results by number, single(20): flea")
    assert str(found) == str(found.ranking)


def test_closed_reranker_says_what_to_do():
    with Reranker("identity") as reranker:
        assert repr(reranker) == "<Reranker: identity (default); no index>"
    with pytest.raises(UsageError, match="this Reranker is closed; make a new one, or use it inside its `with` block"):
        reranker.rank("q", DOCUMENTS)
    assert repr(reranker) == "<closed Reranker: identity (default); no index>"


@pytest.mark.slow
def test_process_with_an_open_reranker_ends_without_a_word():
    program = "from rerank import Reranker; opened = Reranker('identity'); print(opened.rank('q', ['a']))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[{'corpus_id': 0, 'score': 1.0}]\n", "")


def test_forked_process_is_told_of_the_parents_model_and_loads_one_of_its_own():
    """In a separate process: OpenMP's threads, which a fork loses, come with the first computation."""
    command = """
import os
from rerank import Reranker
from rerank.errors import UsageError

reranker = Reranker("pe-rank")
reranker.rank("flea", ["Deserts are dry.", "A flea lives a year."])
if os.fork():
    os._exit(os.waitstatus_to_exitcode(os.wait()[1]))
try:
    reranker.rank("flea", ["Deserts are dry."])
except UsageError as error:
    assert "this process was forked after its parent made the Reranker" in str(error)
    assert Reranker("pe-rank").rank("flea", ["Deserts are dry.", "A flea lives a year."])[0]["corpus_id"] == 1
    os._exit(0)
os._exit(1)
"""
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    subprocess.run([sys.executable, "-c", command], env=environment, timeout=TIMEOUT_S * 2, check=True)


@pytest.mark.parametrize(
    ("options", "share"),
    [
        (RankOptions(model="rambling"), "40 of 40 identifiers (100%)"),  # two windows of 20
        (RankOptions(model="rambling", strategy=StrategyKind.CASCADE, preranker="number", window_size=5), "5 of 5"),
        (RankOptions(model="number"), ""),
    ],
)
async def test_share_of_repaired_places_is_a_warning_of_the_reply(options, share):
    """An order that was repaired in every place is the first stage's, and would look like a tie with it."""
    async with reranker_of({"number": NumberRanker(), "rambling": rambling_ranker()}) as reranker:
        trace = (await reranker.rerank("q", numbered_passages(range(30)), options)).trace
    assert trace.model_warning.startswith(share)
    assert ("were repaired; passages that it did not name kept their order" in trace.model_warning) == bool(share)
