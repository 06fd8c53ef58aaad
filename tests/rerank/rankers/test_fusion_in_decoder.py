"""LiT5: the order is what the decoder writes over the states of all passages, each of which the encoder read alone."""

import re
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, T5ForConditionalGeneration
from transformers.modeling_outputs import BaseModelOutput

from rerank import Reranker
from rerank.config import ServiceConfig
from rerank.config.named import named_model
from rerank.errors import CheckpointError, ConfigError
from rerank.profiles import load_profile
from rerank.prompting.style import PromptStyle
from rerank.rankers.fusion_in_decoder import FusionInDecoderRanker
from rerank.types import ScoreKind
from tests.fakes import prepared_window, ranking_of
from tests.t5 import write_t5

PROFILE = load_profile("lit5-distill")
PROMPT, STYLE = PROFILE.passage_prompt, PromptStyle.model_validate(PROFILE.prompt)
TEXTS = ["a flea lives a year", "the flea market", "", "fleas die " * 100, "[2] a flea, see [A]", "Deserts are dry."]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_t5(tmp_path_factory.mktemp("lit5") / "LiT5-Distill-base")


@pytest.fixture(scope="module")
def ranker(folder) -> FusionInDecoderRanker:
    return FusionInDecoderRanker(folder, PROMPT, STYLE, 20, "cpu", "float32")


@torch.no_grad()
def answer_with_padding(folder: Path, query: str, texts: list[str]) -> str:
    """What the authors' program does: prompts are padded to 150 tokens, and the decoder has a mask."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), T5ForConditionalGeneration.from_pretrained(folder)
    words = [re.sub(r"\[(\d+)\]", r"(\1)", " ".join(text.split()[:150])) for text in texts]
    prompts = [f"Search Query: {query} Passage: [{n}] {text} Relevance Ranking: " for n, text in enumerate(words, 1)]
    inputs = tokenizer(prompts, return_tensors="pt", padding="max_length", truncation=True, max_length=150)
    states = model.encoder(input_ids=inputs.input_ids, attention_mask=inputs.attention_mask)[0]
    output = model.generate(
        encoder_outputs=BaseModelOutput(last_hidden_state=states.reshape(1, -1, states.shape[-1])),
        attention_mask=inputs.attention_mask.reshape(1, -1),
        max_length=len(" > ".join(f"[{number}]" for number in range(1, 21))),
        do_sample=False,
    )
    return str(tokenizer.decode(output[0], skip_special_tokens=True))


@pytest.mark.parametrize("query", ["how long does a flea live", "query [3]  with spaces"])
def test_answer_is_that_of_the_authors_program(query, folder, ranker):
    window = ranker.encode(prepared_window(ranker, query, TEXTS))
    written, cost = ranker._answer(window.prompts)
    assert written == answer_with_padding(folder, query, TEXTS)
    assert 1 <= cost.tokens <= 127


def test_scores_are_ranks_in_the_answer(ranker, monkeypatch):
    answer = ("[3] > [1] > [3] > [9]", None)
    monkeypatch.setattr(ranker, "_answer", lambda prompts: answer)
    ranking = ranking_of(ranker, "flea", TEXTS[:4])
    assert (ranking.scores, ranking.repairs) == ((-1.0, -2.0, 0.0, -3.0), 2)
    assert ranker.info.score_kind is ScoreKind.RANK


def test_prompt_is_cut_at_its_end_and_the_passage_is_named(ranker):
    window = ranker.encode(prepared_window(ranker, "flea", TEXTS))
    assert max(map(len, window.prompts)) == 150
    assert window.truncated == (3,)
    assert {prompt[-1] for prompt in window.prompts} == {ranker._tokenizer.eos_token_id}


def test_long_query_is_cut_so_that_passages_have_room(ranker):
    prepared = prepared_window(ranker, "flea " * 500, ["a flea", "another one"])
    assert prepared.query.is_truncated
    first, second = ranker.encode(prepared).prompts
    assert len(first) < 150
    assert first != second


def test_special_tokens_in_texts_are_divided(ranker):
    prepared = prepared_window(ranker, "flea <|im_end|>", ["a <|im_end|> flea"])
    assert (prepared.query.text, prepared.passages[0].text) == ("flea < |im_end|>", "a < |im_end|> flea")


def test_folder_is_served_by_its_name_and_by_its_profile(folder):
    assert named_model(f"a={folder}")["ranker"] == "fusion-in-decoder"
    with Reranker(f"lit5-distill:{folder}") as reranker:
        ranking = reranker.rerank("how long does a flea live", TEXTS * 4)
    assert sorted(item.position for item in ranking.ranked) == list(range(24))
    assert ranking.trace.decode_ms > 0


def test_model_without_a_profile_is_told_which(folder, tmp_path):
    renamed = tmp_path / "mine"
    renamed.symlink_to(folder)
    with pytest.raises(ConfigError, match=r"lit5-distill:.*if it is LiT5-Distill"):
        named_model(f"a={renamed}")
    config = ServiceConfig.model_validate({"models": [{"name": "a", "ranker": "fusion-in-decoder", "path": renamed}]})
    with pytest.raises(CheckpointError, match="its prompt is in a profile, and it names none; add profile: lit5"):
        Reranker(config)
