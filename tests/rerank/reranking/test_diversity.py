"""Diversity: maximal marginal relevance as in the paper, near duplicates, and texts without vectors."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from rerank.errors import DeadlineExceeded, InvalidRequest
from rerank.models.encoder import Encoder
from rerank.reranking.diversity import NEAR_DUPLICATE_COSINE, diversified
from rerank.retrieval.index import Index
from rerank.types import Matrix, NearDuplicates, Passage, RankedCandidate, Ranking, RankOptions, ScoreKind, Vector
from tests.fakes import NumberRanker
from tests.serving import reranker_of
from tests.slices import finished
from tests.traces import trace_of

TRACE = trace_of()
DROP = RankOptions(near_duplicates="drop")

Diversify = Callable[[Ranking, RankOptions], Ranking]


@pytest.fixture
def diversify(encoder: Encoder) -> Diversify:
    return lambda ranking, options: finished(diversified(encoder, ranking, options))


def unit_vectors(n: int, seed: int, spread: int = 4) -> Matrix:
    """(n, 384) vectors in a space of `spread` dimensions."""
    vectors = np.zeros((n, 384), dtype=np.float32)
    vectors[:, :spread] = np.random.default_rng(seed).normal(size=(n, spread))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def ranking_of(vectors: Matrix, scores: Sequence[float] | None = None) -> Ranking:
    """The ranking of passages d0, d1, … with these vectors; by default their scores fall by 1."""
    passages = [Passage(f"d{i}", f"text {i}", vector=vector) for i, vector in enumerate(vectors)]
    values = scores or [float(-i) for i in range(len(passages))]
    ranked = [RankedCandidate(passage, i, values[i]) for i, passage in enumerate(passages)]
    return Ranking(tuple(ranked), ScoreKind.WINDOW_SCORE, TRACE)


def ids(ranking: Ranking) -> list[str]:
    return [item.passage.doc_id for item in ranking.ranked]


def as_in_the_paper(vectors: Matrix, scores: Sequence[float], diversity: float) -> list[str]:
    """Carbonell and Goldstein 1998, section 2, one pair of passages at a time; its lambda is 1 - diversity."""
    low, high = min(scores), max(scores)
    relevance = [(score - low) / (high - low) if high > low else 1.0 for score in scores]
    left, chosen = list(range(len(vectors))), list[int]()

    def marginal(i: int) -> float:
        largest = max((float(vectors[i] @ vectors[j]) for j in chosen), default=0.0)
        return (1 - diversity) * relevance[i] - diversity * largest

    while left:
        chosen.append(max(left, key=marginal))  # the first one of equals
        left.remove(chosen[-1])
    return [f"d{i}" for i in chosen]


@pytest.mark.parametrize("diversity", [0.05, 0.3, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("n", [2, 3, 10, 40])
def test_order_is_that_of_the_papers_formula(diversify: Diversify, n: int, diversity: float) -> None:
    for seed in range(10):
        vectors = unit_vectors(n, seed)
        scores = sorted((random.Random(seed).random() for _ in range(n)), reverse=True)
        found = diversify(ranking_of(vectors, scores), RankOptions(diversity=diversity))
        assert ids(found) == as_in_the_paper(vectors, scores, diversity)
        assert found.score_kind is ScoreKind.RANK
        assert [item.score for item in found.ranked] == list(range(n, 0, -1))


@pytest.mark.parametrize("top_n", [1, 3, 30, 50])
@pytest.mark.parametrize("diversity", [0.2, 1.0])
def test_top_n_is_chosen_among_all(diversify: Diversify, top_n: int, diversity: float) -> None:
    ranking = ranking_of(unit_vectors(30, 1))
    whole = diversify(ranking, RankOptions(diversity=diversity))
    assert sorted(item.position for item in whole.ranked) == list(range(30))
    some = diversify(ranking, RankOptions(top_n=top_n, diversity=diversity))
    assert some.ranked == whole.ranked[:top_n]


def at_cosine(vector: Vector, other: Vector, cosine: float) -> Vector:
    """A vector with this cosine to the first one, in the plane of both."""
    apart = other - (other @ vector) * vector
    return (cosine * vector + math.sqrt(1 - cosine**2) * apart / np.linalg.norm(apart)).astype(np.float32)


@pytest.mark.parametrize("beyond", [0.01, -0.01])
def test_near_duplicates_are_dropped_and_name_the_one_that_is_kept(diversify: Diversify, beyond: float) -> None:
    first, other = unit_vectors(2, 5, spread=64)
    third = at_cosine(first, other, NEAR_DUPLICATE_COSINE + beyond)
    found = diversify(ranking_of(np.stack([first, other, third])), DROP)
    dropped = found.trace.dropped
    assert dropped == ({"d2": "d0"} if beyond > 0 else {})
    assert ids(found) == ["d0", "d1", "d2"][: 3 - len(dropped)]
    assert found.score_kind is ScoreKind.WINDOW_SCORE, "without diversity the scores stand"


def test_long_texts_with_the_same_beginning_are_dropped_only_if_they_are_equal(diversify: Diversify) -> None:
    vector = unit_vectors(1, 6)[0]
    passages = [
        Passage(f"d{i}", text, vector=vector, vector_truncated=True) for i, text in enumerate(["a b", "a c", "a b"])
    ]
    ranked = tuple(RankedCandidate(passage, i, float(-i)) for i, passage in enumerate(passages))
    assert ids(diversify(Ranking(ranked, ScoreKind.WINDOW_SCORE, TRACE), DROP)) == ["d0", "d1"]


@pytest.mark.parametrize("n", [0, 1])
@pytest.mark.parametrize("diversity", [0.0, 0.5, 1.0])
def test_empty_and_single_lists_stay_as_they_are(diversify: Diversify, n: int, diversity: float) -> None:
    ranking = ranking_of(unit_vectors(n, 7))
    assert ids(diversify(ranking, RankOptions(diversity=diversity, near_duplicates="drop"))) == ids(ranking)


# --- with a reranker ---

TEXTS = [
    "relevance 9 a flea lives for a year",
    "relevance 8 a flea lives for one year",
    "relevance 3 trains are late when it snows",
]
BLANK = ["relevance 0", "relevance 0 "]


def reranked(encoder: Encoder, texts: Sequence[str], options: RankOptions, seconds: float = math.inf) -> Ranking:
    async def run() -> Ranking:
        async with reranker_of(encoder, {"number": NumberRanker()}) as reranker:
            return await reranker.rerank("q", texts, options, asyncio.get_running_loop().time() + seconds)

    return asyncio.run(run())


def order(ranking: Ranking) -> list[int]:
    return [item.position for item in ranking.ranked]


@pytest.mark.parametrize("near_duplicates", ["", *NearDuplicates])
@pytest.mark.parametrize("diversity", [0.0, 0.7])
def test_nothing_is_compared_unless_it_is_asked_for(encoder: Encoder, diversity: float, near_duplicates: str) -> None:
    ranking = reranked(encoder, TEXTS, RankOptions(diversity=diversity, near_duplicates=near_duplicates))
    is_compared = diversity > 0 or near_duplicates == "drop"
    assert bool(ranking.trace.dropped) is (near_duplicates == "drop")
    assert is_compared or order(ranking) == [0, 1, 2]


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("chunks", [0, 2])
def test_texts_without_vectors_are_compared_too(encoder: Encoder, ordered: bool, chunks: int) -> None:
    options = RankOptions(diversity=0.7, ordered=ordered, max_chunks_per_doc=chunks)
    assert order(reranked(encoder, TEXTS, options)) == [0, 2, 1]
    assert sorted(order(reranked(encoder, TEXTS + BLANK, options))) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("feedback", [None, "weighted-ranknet"])
async def test_results_of_a_search_are_chosen_among_all_that_were_found(
    encoder: Encoder, index: Index, feedback: str | None
) -> None:
    async with reranker_of(encoder, {"number": NumberRanker()}, index) as reranker:

        async def found(**options: Any) -> list[str]:
            result = await reranker.search("fleas", "dense", 8, RankOptions(**options), feedback=feedback)
            return ids(result.ranking)

        whole, first = await found(diversity=0.9), await found(diversity=0.9, top_n=3)
        assert (first, sorted(whole)) == (whole[:3], sorted(await found()))
        assert whole != await found()


@pytest.mark.parametrize("diversity", [-0.1, 1.1, math.nan])
def test_diversity_outside_0_to_1_is_refused(diversity: float) -> None:
    with pytest.raises(InvalidRequest, match="is not between 0 and 1") as caught:
        RankOptions(diversity=diversity)
    assert caught.value.field == "diversity"


def test_late_comparison_is_an_error_or_leaves_the_order(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(*_: object) -> Iterator[None]:
        while True:
            yield

    monkeypatch.setattr("rerank.reranking.steps.diversified", endless)
    with pytest.raises(DeadlineExceeded, match="leave diversity and near_duplicates out"):
        reranked(encoder, TEXTS, RankOptions(diversity=0.5), seconds=1.0)
    found = reranked(encoder, TEXTS, RankOptions(diversity=0.5, allow_partial=True, top_n=2), seconds=1.0)
    assert order(found) == [0, 1]
    assert found.trace.reason == "the deadline passed while results were compared"
