"""Stand-ins for inference servers."""

import copy
from collections.abc import AsyncIterator
from functools import cache
from pathlib import Path

import pytest

from rerank.models.loading import load_tokenizer_of
from tests.rerank.inference_servers.stand_in import LLAMA_CPP, VLLM, StandIn, recorded, stand_in

_load_once = cache(load_tokenizer_of)


@pytest.fixture(autouse=True)
def _tokenizers_are_loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = "rerank.reranking.load_models.load_tokenizer_of"
    monkeypatch.setattr(loaded, lambda source: copy.deepcopy(_load_once(source)))


@pytest.fixture(scope="module")
def url(request: pytest.FixtureRequest) -> str:
    """The server given with --vllm."""
    return str(request.config.getoption("--vllm"))


@pytest.fixture(scope="module")
def models(request: pytest.FixtureRequest) -> Path:
    """The folder of the models given with --vllm-models."""
    if not (found := request.config.getoption("--vllm-models")):
        pytest.skip("needs --vllm-models DIR, the folder of the models that tests/…/random_rerankers.py writes")
    return Path(found)


@pytest.fixture
async def vllm() -> AsyncIterator[StandIn]:
    """A stand-in that replies as vLLM did."""
    async with stand_in(recorded(VLLM)) as server:
        yield server


@pytest.fixture
async def llama_cpp() -> AsyncIterator[StandIn]:
    """A stand-in that replies as llama-server did."""
    async with stand_in(recorded(LLAMA_CPP)) as server:
        yield server
