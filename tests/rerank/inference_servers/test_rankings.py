"""Rankings over an inference server, whose replies were recorded: equal to the model's in this process."""

from __future__ import annotations

from pathlib import Path

import pytest

from rerank.config import EngineConfig, FirstModel, GenerationModel
from rerank.engine.engine import Engine
from rerank.engine.request import Request
from rerank.engine.strategies import Single
from rerank.models.encoder import Encoder
from rerank.models.smollm2 import locate_causal_lm
from rerank.reranking.load_models import load_ranker, load_remote
from rerank.types import Ranking
from tests.rerank.inference_servers.cases import WINDOW, adapter, generation, plain, request
from tests.rerank.inference_servers.stand_in import StandIn


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


async def test_scores_are_those_of_the_model_in_this_process(vllm: StandIn, encoder: Encoder) -> None:
    """The bundled FIRST: an adapter at the server, and merged into its base here."""
    served = await ranked(adapter(vllm.url), request())
    here = await ranked_here(adapter(vllm.url), request(), encoder)
    assert scores(served) == pytest.approx(scores(here), abs=1e-3)
    assert [result.position for result in served.ranked] == [result.position for result in here.ranked]
    assert served.trace.tokens == here.trace.tokens


@pytest.mark.slow
async def test_generated_orders_are_those_of_the_model_in_this_process(vllm: StandIn, encoder: Encoder) -> None:
    served = await ranked(generation(vllm.url), request(Single(WINDOW), WINDOW))
    here = await ranked_here(generation(vllm.url), request(Single(WINDOW), WINDOW), encoder)
    assert [result.position for result in served.ranked] == [result.position for result in here.ranked]
    assert served.trace.repairs == here.trace.repairs


@pytest.mark.slow
async def test_llama_cpp_gives_the_order_of_its_quantised_model(llama_cpp: StandIn, encoder: Encoder) -> None:
    """It computes in 8 bits, so its scores differ in the second digit."""
    served = await ranked(plain(llama_cpp.url, {"kind": "llama-cpp"}), request())
    here = await ranked_here(plain(llama_cpp.url), request(), encoder)
    windows = {window.positions: window.scores for window in here.trace.windows}
    found = {window.positions: window.scores for window in served.trace.windows}
    assert found[4, 5, 6, 7] == pytest.approx(windows[4, 5, 6, 7], abs=0.25)
    assert sum(map(len, found.values())) == 3 * WINDOW
