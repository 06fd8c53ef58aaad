"""E2Rank over an inference server: the cosines of the model in this process, and servers that give other vectors.

A stand-in computes the vectors by the arithmetic of vLLM's pooling LAST; test_real_vllm.py asks a real one.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from rerank.config import E2RankModel, EncoderConfig, EngineConfig
from rerank.engine.engine import Engine
from rerank.errors import ModelServerUnfit
from rerank.models.encoder import Encoder
from rerank.rankers.base import Ranker
from rerank.reranking.load_models import E2RANK_END_TOKEN, ModelLoader
from rerank.types import Ranking
from tests.rerank.inference_servers.cases import request, served_by
from tests.rerank.inference_servers.stand_in import Reply, stand_in
from tests.small_encoder import write_qwen_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_qwen_model(tmp_path_factory.mktemp("models") / "e2rank")


@pytest.fixture(scope="module")
def e2rank(folder: Path) -> Encoder:
    return Encoder(EncoderConfig(name=str(folder), pooling="lasttoken", end_token=E2RANK_END_TOKEN), "cpu")


def replies_of(folder: Path, scale: float = 1.0, at: int = -1) -> Callable[[str, Any], Reply | None]:
    """The replies of a server of the model; with pooling LAST, the state at -1 is the vector."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()

    @torch.inference_mode()
    def vector(ids: list[int]) -> list[float]:
        state = model(input_ids=torch.tensor([ids])).last_hidden_state[0, at]
        return (torch.nn.functional.normalize(state, dim=0) * scale).tolist()

    def reply(path: str, body: Any) -> Reply | None:
        if path == "/tokenize":
            return Reply(200, {"tokens": tokenizer(body["prompt"], add_special_tokens=False)["input_ids"]})
        if path == "/v1/embeddings":
            rows = [{"index": index, "embedding": vector(ids)} for index, ids in enumerate(body["input"])]
            return Reply(200, {"data": rows[::-1]})
        return Reply(200, {"data": [{"id": "e2rank", "max_model_len": 4096}]})

    return reply


async def ranked(ranker: Ranker) -> Ranking:
    async with Engine({"zephyr": ranker}, EngineConfig()) as engine:
        return await engine.run(request(None))


def model(folder: Path, url: str = "") -> E2RankModel:
    served = served_by(url, "e2rank") if url else None
    return E2RankModel(name="zephyr", ranker="e2rank", path=folder, served_by=served, precision="float32")


@pytest.mark.parametrize("is_encoder", [False, True])
async def test_scores_equal_the_model_in_this_process(folder, encoder, e2rank, is_encoder):
    loader = ModelLoader(e2rank if is_encoder else encoder, "cpu")
    here = await ranked(loader.load(model(folder)).ranker)
    async with stand_in({}) as server:
        server.fault = replies_of(folder, scale=3.0)  # lengths do not count
        served = await ranked(loader.load(model(folder, server.url)).ranker)
    for found, expected in zip(served.trace.windows, here.trace.windows, strict=True):
        assert found.scores == pytest.approx(expected.scores, abs=1e-5)
    assert [result.position for result in served.ranked] == [result.position for result in here.ranked]


@pytest.mark.parametrize(
    ("is_encoder", "changed", "message"),
    [
        (True, {"at": 0}, "gives another vector of a text than the encoder .* with pooling LAST"),
        (False, {"scale": float("nan")}, "with some that are not finite"),
    ],
)
async def test_server_of_other_vectors_is_not_used(folder, encoder, e2rank, is_encoder, changed, message):
    async with stand_in({}) as server:
        server.fault = replies_of(folder, **changed)
        loaded = ModelLoader(e2rank if is_encoder else encoder, "cpu").load(model(folder, server.url))
        with pytest.raises(ModelServerUnfit, match=message):
            await ranked(loaded.ranker)
