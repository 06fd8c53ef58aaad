"""`ranker: e2rank` over a real vLLM: the cosines of the model in this process.

python -m tests.rerank.inference_servers.random_rerankers DIR
vllm serve DIR/e2rank --served-model-name e2rank --runner pooling --dtype float32 --max-model-len 2048 --port 8000
pytest tests/rerank/inference_servers/test_real_e2rank.py --vllm http://127.0.0.1:8000 --vllm-models DIR
"""

import pytest

from rerank.config import E2RankModel, EncoderConfig, EngineConfig
from rerank.engine.engine import Engine
from rerank.engine.request import Request
from rerank.engine.strategies import RankStage, Single
from rerank.models.encoder import Encoder
from rerank.reranking.load_models import E2RANK_END_TOKEN, ModelLoader
from rerank.types import Passage, Query, Ranking
from tests.rerank.inference_servers.cases import served_by

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]

#: The difference of cosines in float32 between two programs.
CLOSE = 1e-4
STEP = RankStage("zephyr", Single(100))
TEXTS = [f"passage {number}" + " about birds that find their way" * (number % 5) for number in range(40)]


@pytest.mark.parametrize("is_encoder", [False, True], ids=["texts", "vectors of the encoder"])
async def test_scores_equal_the_model_in_this_process(url, models, encoder, is_encoder):
    folder = models / "e2rank"
    settings = EncoderConfig(name=str(folder), pooling="lasttoken", end_token=E2RANK_END_TOKEN)
    loader = ModelLoader(own := Encoder(settings, "cpu"), "cpu")
    vectors = own.encode_passages(TEXTS) if is_encoder else [None] * len(TEXTS)
    passages = [
        Passage(str(n), text, vector=vector) for n, (text, vector) in enumerate(zip(TEXTS, vectors, strict=True))
    ]

    async def ranked(model: E2RankModel) -> Ranking:
        ranker = (loader if is_encoder or model.served_by is None else ModelLoader(encoder, "cpu")).load(model).ranker
        work = Request(Query("how do birds find their way"), tuple(passages), (STEP,))
        async with Engine({"zephyr": ranker}, EngineConfig()) as engine:
            return await engine.run(work)

    here = E2RankModel(name="zephyr", ranker="e2rank", path=folder, precision="float32")
    expected, found = await ranked(here), await ranked(here.model_copy(update={"served_by": served_by(url, "e2rank")}))
    assert found.trace.windows[0].scores == pytest.approx(expected.trace.windows[0].scores, abs=CLOSE)
    assert max(expected.trace.windows[0].scores) - min(expected.trace.windows[0].scores) > 0.01
