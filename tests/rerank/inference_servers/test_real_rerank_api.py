"""`ranker: api` over a real vLLM: the order and the scores of the model in this process.

    python -m tests.rerank.inference_servers.random_rerankers DIR
    vllm serve DIR/bert-reranker --served-model-name bert-reranker --runner pooling --dtype float32 \\
      --max-model-len 512 --port 8000
    vllm serve DIR/qwen3-reranker --served-model-name qwen3-reranker --runner pooling --dtype float32 \\
      --max-model-len 2048 --port 8000 --chat-template DIR/qwen3-reranker/score.jinja --hf-overrides \\
      '{"architectures": ["Qwen3ForSequenceClassification"], "classifier_from_token": ["N", "Y"], \\
      "is_original_qwen3_reranker": true}'
    pytest tests/rerank/inference_servers/test_real_rerank_api.py --vllm http://127.0.0.1:8000 --vllm-models DIR
"""

import asyncio
import random
from itertools import pairwise
from pathlib import Path

import httpx2
import pytest

from rerank.config import ApiModel, EngineConfig, RerankServerSettings
from rerank.engine.engine import Engine
from rerank.engine.request import Request
from rerank.engine.strategies import RankStage, Single, Strategy
from rerank.reranking.load_models import load_remote
from rerank.types import Passage, Query, Ranking
from tests.rerank.inference_servers.random_rerankers import scores_here

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]

WORDS = ("river", "stone", "pigeon", "compass", "winter", "sky", "salt", "bread", "violin", "glacier", "lamp", "moss")
QUERY = "how do birds find their way"
#: The difference of probabilities in float32 between two programs.
CLOSE = 1e-4


@pytest.fixture(scope="module")
def folder(models: Path, url: str) -> Path:
    """The folder of the model that the server serves."""
    name: str = httpx2.get(f"{url}/v1/models", timeout=30).json()["data"][0]["id"]
    return models / name


def texts(n: int) -> list[str]:
    draw = random.Random(n)
    return [" ".join(draw.choices(WORDS, k=draw.randint(2, 12))) for _ in range(n)]


async def ranked(url: str, folder: Path, n: int, strategy: Strategy, **settings: object) -> Ranking:
    servers = {"kind": "vllm", "url": url, "model": folder.name} | settings
    model = ApiModel(name="api", ranker="api", served_by=RerankServerSettings.model_validate(servers))
    candidates = tuple(Passage(f"d{place}", text) for place, text in enumerate(texts(n)))
    async with Engine({"api": load_remote(model)}, EngineConfig()) as engine:
        return await engine.run(Request(Query(QUERY), candidates, (RankStage("api", strategy),)))


@pytest.mark.parametrize("kind", ["vllm", "vllm-score"], ids=["rerank", "score"])
async def test_scores_and_order_equal_the_model_in_this_process(url, folder, kind):
    expected = await asyncio.to_thread(scores_here, folder, QUERY, texts(40))
    assert max(expected) - min(expected) > 0.1, "the texts have nearly the same score"
    found = await ranked(url, folder, 40, Single(1000), kind=kind)
    gaps = [abs(result.score - expected[result.position]) for result in found.ranked]
    print(f"{folder.name}, {kind}: largest difference of a score {max(gaps):.1e}")
    assert max(gaps) < CLOSE
    best_first = [expected[result.position] for result in found.ranked]
    assert all(a > b - CLOSE for a, b in pairwise(best_first))
