"""Identifiers as publishers score them: by the token "A", or by the larger logit of "A" and "▁A"."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rerank.checkpoints.manifest import served_model
from rerank.config import load_config
from rerank.errors import CheckpointError
from rerank.models.encoder import Encoder
from rerank.rankers.base import Ranker, rank_windows
from rerank.reranking.registry import load_models, load_ranker
from rerank.types import Passage, Query, Window
from tests.causal_lms import write_causal_lm
from tests.small_tokenizers import byte_level, metaspace, uncased

pytest.importorskip("ftfy")

WINDOW = Window(Query("what jumps"), tuple(Passage(f"d{place}", f"text {place}") for place in range(20)))
NAMES = "ABCDEFGHIJKLMNOPQRST"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_causal_lm(tmp_path_factory.mktemp("published") / "mistral", "mistral", metaspace("instruct"))


def served(checkpoint: Path, encoder: Encoder, **settings: object) -> Ranker:
    model = served_model(f"it=first-mistral:{checkpoint}") | {"template": "first"} | settings
    return load_models(load_config(None, [model]).models[:1], encoder, "cpu").rankers["it"]


@torch.no_grad()
def formula(checkpoint: Path, prompt: list[int], marks: tuple[str, ...]) -> list[float]:
    """log softmax over the letters of the window, each with the largest logit of its spellings."""
    vocabulary = AutoTokenizer.from_pretrained(checkpoint).get_vocab()
    logits = AutoModelForCausalLM.from_pretrained(checkpoint).eval()(torch.tensor([prompt])).logits[0, -1]
    largest = [max(logits[vocabulary[mark + name]] for mark in marks) for name in NAMES]
    return torch.stack(largest).log_softmax(0).tolist()


@pytest.mark.parametrize(
    ("settings", "marks"),
    [({}, ("",)), ({"identifier_tokens": "bare"}, ("",)), ({"identifier_tokens": "max"}, ("", "▁"))],
)
def test_scores_are_those_of_the_formula(
    checkpoint: Path, encoder: Encoder, settings: dict[str, object], marks: tuple[str, ...]
) -> None:
    ranker = served(checkpoint, encoder, **settings)
    prepared = ranker.prepare(WINDOW.query, WINDOW.passages)
    window = Window(prepared.query, prepared.passages)
    prompt = list(ranker.encode(window).prompts[0])
    (ranking,) = rank_windows(ranker, [window])
    assert list(ranking.scores) == pytest.approx(formula(checkpoint, prompt, marks), abs=1e-5)
    both, bare = formula(checkpoint, prompt, ("", "▁")), formula(checkpoint, prompt, ("",))
    assert both != pytest.approx(bare, abs=1e-2), "the two rules differ on this model"


def test_byte_level_tokens_at_the_start_of_a_word_count_too(tmp_path: Path, encoder: Encoder) -> None:
    """Qwen writes "ĠA" where SentencePiece writes "▁A"."""
    folder = write_causal_lm(tmp_path / "qwen3", "qwen3", byte_level())
    settings = {"name": "it", "ranker": "first", "path": folder, "identifier_tokens": "max"}
    ranker = load_ranker(load_config(None, [settings]).models[0], encoder, "cpu")
    prompt = list(ranker.encode(WINDOW).prompts[0])
    (ranking,) = rank_windows(ranker, [WINDOW])
    assert list(ranking.scores) == pytest.approx(formula(folder, prompt, ("", "Ġ")), abs=1e-5)


def test_tokenizer_without_such_tokens_is_refused(tmp_path: Path, encoder: Encoder) -> None:
    folder = write_causal_lm(tmp_path / "llama", "llama", uncased())
    settings = {"name": "it", "ranker": "first", "path": folder, "identifier_tokens": "max"}
    model = load_config(None, [settings]).models[0]
    with pytest.raises(
        CheckpointError, match=r"no token for a, b, .* at the start of a word; use identifier_tokens: b"
    ):
        load_ranker(model, encoder, "cpu")
