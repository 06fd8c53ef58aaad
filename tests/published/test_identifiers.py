"""Identifiers as publishers score them: by the token "A"."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rerank.config import load_config
from rerank.config.named import named_model
from rerank.models.encoder import Encoder
from rerank.rankers.base import Ranker, rank_windows
from rerank.reranking.load_models import ModelLoader, load_models
from rerank.types import Passage, Query, Window
from tests.causal_lms import write_causal_lm
from tests.small_tokenizers import metaspace

pytest.importorskip("ftfy")

WINDOW = Window(Query("what jumps"), tuple(Passage(f"d{place}", f"text {place}") for place in range(20)))
NAMES = "ABCDEFGHIJKLMNOPQRST"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_causal_lm(tmp_path_factory.mktemp("published") / "mistral", "mistral", metaspace("instruct"))


def served(checkpoint: Path, encoder: Encoder) -> Ranker:
    model = named_model(f"it=first-mistral:{checkpoint}") | {"template": "first"}
    return load_models(load_config(None, [model]).models[:1], ModelLoader(encoder, "cpu")).rankers["it"]


@torch.no_grad()
def formula(checkpoint: Path, prompt: list[int]) -> list[float]:
    """log softmax over the letters of the window."""
    vocabulary = AutoTokenizer.from_pretrained(checkpoint).get_vocab()
    logits = AutoModelForCausalLM.from_pretrained(checkpoint).eval()(torch.tensor([prompt])).logits[0, -1]
    return logits[[vocabulary[name] for name in NAMES]].log_softmax(0).tolist()


def test_scores_are_those_of_the_bare_letters(checkpoint: Path, encoder: Encoder) -> None:
    ranker = served(checkpoint, encoder)
    prepared = ranker.prepare(WINDOW.query, WINDOW.passages)
    window = Window(prepared.query, prepared.passages)
    prompt = list(ranker.encode(window).prompts[0])
    (ranking,) = rank_windows(ranker, [window])
    assert list(ranking.scores) == pytest.approx(formula(checkpoint, prompt), abs=1e-5)
