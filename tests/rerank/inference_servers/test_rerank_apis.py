"""The rerank APIs: what is sent, and that no answer which is wrong in some field becomes a ranking."""

import math
from typing import Any

import pytest

from rerank.inference_servers.rerank_apis import RERANK_APIS, RerankApi

BEST_FIRST = ((1, 0.9), (2, 0.5), (0, 0.1))


def results(*pairs: tuple[int, float]) -> list[dict[str, float]]:
    return [{"index": index, "relevance_score": score} for index, score in pairs]


#: For each API the answer to "q" and the texts a, b, c in the form that its documentation shows; b is the best.
ANSWERS: dict[str, Any] = {
    "vllm": {
        "id": "rerank-1",
        "model": "m",
        "usage": {"total_tokens": 56},
        "results": [
            {"index": 1, "document": {"text": "b"}, "relevance_score": 0.9},
            {"index": 2, "document": {"text": "c"}, "relevance_score": 0.5},
            {"index": 0, "document": {"text": "a"}, "relevance_score": 0.1},
        ],
    },
    "vllm-score": {
        "id": "score-1",
        "object": "list",
        "data": [{"index": place, "object": "score", "score": score} for place, score in enumerate((0.1, 0.9, 0.5))],
    },
    "sglang": [{"score": 0.9, "index": 1}, {"score": 0.5, "index": 2}, {"score": 0.1, "index": 0}],
    "llama-cpp": {"model": "m", "object": "list", "results": results((0, 0.1), (1, 0.9), (2, 0.5))},
    "tei": [{"index": 1, "score": 0.9}, {"index": 2, "score": 0.5}, {"index": 0, "score": 0.1}],
    "infinity": {"object": "rerank", "results": results(*BEST_FIRST)},
    "cohere": {
        "results": results(*BEST_FIRST),
        "meta": {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}},
    },
    "jina": {"results": results(*BEST_FIRST), "usage": {"total_tokens": 815}},
}


#: Each kind; "vllm" alone would be the marker of tests that need one.
each_kind = pytest.mark.parametrize("kind", RERANK_APIS, ids=[f"kind {name}" for name in RERANK_APIS])


def answer(api: RerankApi, *pairs: tuple[Any, Any]) -> Any:
    """The answer with these pairs of index and score."""
    found = [{"index": index, api.score: score} for index, score in pairs]
    return {api.results: found} if api.results else found


@each_kind
def test_scores_are_in_the_order_of_the_passages(kind):
    assert RERANK_APIS[kind].scores(ANSWERS[kind], 3) == [0.1, 0.9, 0.5]


#: Wrong answers about two passages: pairs of index and score, or another form.
WRONG: list[Any] = [
    [],
    [(0, 0.5)],
    [(0, 0.5), (1, 0.5), (2, 0.5)],
    [(0, 0.5), (2, 0.5)],
    [(0, 0.5), (-1, 0.5)],
    [(0, 0.5), (True, 0.5)],
    *([(0, 0.5), (1, score)] for score in (None, True, math.nan, math.inf, 10**400)),
    *(None, "results", {}, {"results": None}, [[0, 0.5]], [{"index": 0}], [{"score": 0.5, "relevance_score": 0.5}]),
]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
@each_kind
def test_wrong_answer_is_refused(kind, wrong):
    api = RERANK_APIS[kind]
    assert api.scores(answer(api, (1, 1), (0, 0.5)), 2) == [0.5, 1.0]
    is_pairs = isinstance(wrong, list) and all(isinstance(row, tuple) for row in wrong)
    with pytest.raises((LookupError, TypeError, ValueError)):
        api.scores(answer(api, *wrong) if is_pairs else wrong, 2)
