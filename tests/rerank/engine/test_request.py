"""Estimates of the remaining work of a request, from its schedule and from its windows so far."""

from collections.abc import Sequence

import numpy as np
import pytest

from rerank.engine.request import MIN_WINDOW_TOKENS, ModelCost, ModelPhase, Phase, Request
from rerank.engine.strategies import RankStage, Single, Sliding, Strategy
from rerank.rankers.base import RankerInfo
from rerank.types import Passage, Query, ScoreKind
from tests.fakes import NumberRanker
from tests.rerank.engine.harness import engine_for, request_for

RANK = ModelPhase(Phase.RANK, "model")
PREPARE = ModelPhase(Phase.PREPARE, "model")

#: Reads up to 500 tokens of a passage, and 1500 of a window.
TEXTS = RankerInfo("", "", "", "", 100, ScoreKind.RANK, max_passage_tokens=500, max_window_tokens=1500)
VECTORS = RankerInfo("", "", "", "", 100, ScoreKind.RANK, max_passage_tokens=500, needs_vectors=True)
SLIDING = RankStage("model", Sliding(20, 10))


def expected(passages: Sequence[Passage], *stages: RankStage) -> Request:
    """A request for these passages, with the work that is expected for it."""
    request = Request(Query("q"), tuple(passages), stages or (SLIDING,))
    request.begin({"model": TEXTS, "cheap": VECTORS})
    request.begin_stage(request.stages[0], VECTORS)
    return request


def cost(info: RankerInfo, passages: Sequence[Passage], strategy: Strategy = Single(20)) -> ModelCost:  # noqa: B008
    return ModelCost.of(info, Query("q"), passages, strategy)


def short(n: int) -> list[Passage]:
    """Passages of 2 + 11 // 4 = 4 tokens each."""
    return [Passage(str(number), "relevance 0") for number in range(n)]


@pytest.mark.parametrize(
    ("n", "tokens"), [(0, 0), (1, MIN_WINDOW_TOKENS), (20, 20 * 4), (21, 2 * 20 * 4), (100, 9 * 20 * 4)]
)
def test_estimate_uses_the_length_of_the_passages_before_the_first_window(n, tokens):
    assert expected(short(n)).remaining == {RANK: tokens, PREPARE: 2 + 4 * n}


def test_long_passages_count_up_to_the_limits_of_the_model():
    passage = Passage("a", "x" * 200_000)
    assert cost(TEXTS, [passage] * 3).prepare == 2 + 3 * 502
    assert cost(TEXTS, [passage] * 3, Single(2)).rank == 1004
    assert cost(TEXTS, [passage] * 3).rank == 1500


def test_cascade_is_estimated_per_model():
    """The cheap model reads vectors: a passage counts one token in its windows."""
    job = expected(short(100), RankStage("cheap", Single(50)), RankStage("model", Single(10)))
    cheap, cheap_prepare = (ModelPhase(stage, "cheap") for stage in (Phase.RANK, Phase.PREPARE))
    work = {cheap: 50, RANK: 40, cheap_prepare: 402, PREPARE: 402}
    assert job.remaining == work
    job.add_windows(1, 400)
    assert job.remaining == work | {cheap: 400}


def test_passages_with_a_vector_need_no_preparation_by_a_ranker_of_vectors():
    """They need it by a ranker of texts, which otherwise looked slow after requests that refer to the index."""
    vector = np.ones(2, dtype=np.float32)
    passages = [Passage("a", "some text", vector=vector), Passage("b", "text")]
    assert cost(VECTORS, passages).prepare == 2 + 1 + 3
    assert cost(TEXTS, passages).prepare == 2 + 4 + 3
    assert cost(TEXTS, []).prepare == 2


async def test_passages_are_counted_once_however_many_windows_and_slices_read_them(monkeypatch):
    counted: list[int] = []
    estimate = ModelCost.of

    def counting(info: RankerInfo, query: Query, passages: Sequence[Passage], strategy: Strategy) -> ModelCost:
        counted.append(len(passages))
        return estimate(info, query, passages, strategy)

    monkeypatch.setattr(ModelCost, "of", counting)
    request = request_for(range(100))
    async with engine_for(NumberRanker()) as engine:
        ranking = await engine.run(request)
    assert len(ranking.trace.windows) == 9
    assert counted == [100]
