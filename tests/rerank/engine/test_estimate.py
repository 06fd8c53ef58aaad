"""Estimates of the remaining work of a request, from its schedule and from its windows so far."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from rerank.engine.estimate import expected_work, prepare_tokens, window_tokens
from rerank.engine.job import MIN_WINDOW_TOKENS, ModelStage, QueuedJob, RankJob, Stage
from rerank.engine.strategies import Single, Sliding, Step
from rerank.rankers.base import RankerInfo
from rerank.types import Passage, Query, ScoreKind

RANK = ModelStage(Stage.RANK, "model")
PREPARE = ModelStage(Stage.PREPARE, "model")

#: Reads up to 500 tokens of a passage, and 1500 of a window.
TEXTS = RankerInfo("", "", "", "", 100, ScoreKind.RANK, max_passage_tokens=500, max_window_tokens=1500)
VECTORS = RankerInfo("", "", "", "", 100, ScoreKind.RANK, max_passage_tokens=500, reads_vectors=True)
SLIDING = Step("model", Sliding(20, 10))


def expected(passages: Sequence[Passage], *steps: Step) -> QueuedJob:
    """A job of a request for these passages, with the work that is expected for it."""
    request, job = RankJob(Query("q"), tuple(passages), steps or (SLIDING,)), QueuedJob()
    job.expect(expected_work(request, {"model": TEXTS, "cheap": VECTORS}))
    return job


def short(n: int) -> list[Passage]:
    """Passages of 2 + 11 // 4 = 4 tokens each."""
    return [Passage(str(number), "relevance 0") for number in range(n)]


@pytest.mark.parametrize(
    ("n", "tokens"), [(0, 0), (1, MIN_WINDOW_TOKENS), (20, 20 * 4), (21, 2 * 20 * 4), (100, 9 * 20 * 4)]
)
def test_estimate_uses_the_length_of_the_passages_before_the_first_window(n: int, tokens: int) -> None:
    assert expected(short(n)).remaining == {RANK: tokens, PREPARE: 2 + 4 * n}


def test_long_passages_count_up_to_the_limits_of_the_model() -> None:
    passage = Passage("a", "x" * 200_000)
    assert prepare_tokens(TEXTS, Query("q"), [passage] * 3) == 2 + 3 * 502
    assert window_tokens(TEXTS, [passage] * 3, 2) == 1004
    assert window_tokens(TEXTS, [passage] * 3, 20) == 1500


def test_cascade_is_estimated_per_model() -> None:
    """The cheap model reads vectors: a passage counts one token in its windows."""
    job = expected(short(100), Step("cheap", Single(50)), Step("model", Single(10)))
    cheap, cheap_prepare = (ModelStage(stage, "cheap") for stage in (Stage.RANK, Stage.PREPARE))
    work = {cheap: 50, RANK: 40, cheap_prepare: 402, PREPARE: 402}
    assert job.remaining == work
    job.add_windows("cheap", [400])
    assert job.remaining == work | {cheap: 400}


def test_passages_with_a_vector_need_no_preparation_by_a_ranker_of_vectors() -> None:
    """They need it by a ranker of texts, which otherwise looked slow after requests that refer to the index."""
    vector = np.ones(2, dtype=np.float32)
    passages = [Passage("a", "some text", vector=vector), Passage("b", "text")]
    assert prepare_tokens(VECTORS, Query("q"), passages) == 2 + 1 + 3
    assert prepare_tokens(TEXTS, Query("q"), passages) == 2 + 4 + 3
    assert prepare_tokens(TEXTS, Query(""), []) == 2
