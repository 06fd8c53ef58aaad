"""Prompt styles of published models: BOS tokens, chat format, and settings that are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from transformers import PreTrainedTokenizerBase

from rerank.errors import CheckpointError
from rerank.prompting.listwise import ListwiseRenderer
from rerank.prompting.style import PromptStyle
from rerank.prompting.templates import load_template
from rerank.types import Passage, Query, Window
from tests.small_tokenizers import CHATML_CHAT, byte_level, metaspace, uncased

NAMES = ("A", "B")


def prompt_ids(tokenizer: PreTrainedTokenizerBase, style: PromptStyle, *texts: str) -> list[int]:
    renderer = ListwiseRenderer(load_template("first").with_style(style), tokenizer, 4096, answer_tokens=1)
    passages = [Passage(str(place), text) for place, text in enumerate(texts or ("one", "two"))]
    prepared = renderer.prepare(Query("the query"), passages)
    return renderer.prompt(Window(prepared.query, prepared.passages), NAMES).token_ids


@pytest.mark.parametrize("count", [0, 1, 2])
@pytest.mark.parametrize("chat", ["zephyr", "instruct"])
def test_prompt_begins_with_as_many_bos_tokens_as_the_style_says(chat: str, count: int) -> None:
    """FirstMistral was trained with two: the chat template of "instruct" writes one, the tokenizer another."""
    tokenizer = metaspace(chat)  # type: ignore[arg-type]
    plain = prompt_ids(tokenizer, PromptStyle())
    assert prompt_ids(tokenizer, PromptStyle(bos_tokens=count)) == [tokenizer.bos_token_id] * count + plain[1:]


def test_doubled_bos_at_the_beginning_is_refused() -> None:
    tokenizer = byte_level()
    tokenizer.bos_token = "<|im_start|>"
    tokenizer.chat_template = "{{ bos_token }}" + CHATML_CHAT
    with pytest.raises(CheckpointError, match=r"begins with two BOS tokens; .* or name a profile"):
        prompt_ids(tokenizer, PromptStyle())
    assert prompt_ids(tokenizer, PromptStyle(bos_tokens=1))[:2] != [tokenizer.bos_token_id] * 2


def test_template_without_chat_markup_gives_plain_text() -> None:
    template = replace(load_template("first"), chat_markup=False)
    prompts = []
    for chat_template in (CHATML_CHAT, None):
        tokenizer = byte_level()
        tokenizer.chat_template = chat_template
        renderer = ListwiseRenderer(template, tokenizer, 4096, answer_tokens=1)
        prompts.append(renderer.render(Query("the query"), NAMES, ("one", "two")))
    assert prompts[0] == prompts[1]
    assert "<|im_start|>" not in prompts[0]


def test_chat_format_of_the_style_is_for_tokenizers_without_one() -> None:
    turns = "{% for message in messages %}{{ message['role'] + ': ' + message['content'] }} {% endfor %}answer:"
    tokenizer = byte_level()
    assert prompt_ids(tokenizer, PromptStyle(chat_template=turns)) == prompt_ids(byte_level(), PromptStyle())
    tokenizer.chat_template = None
    text = tokenizer.decode(prompt_ids(tokenizer, PromptStyle(chat_template=turns)))
    assert text.startswith("system: You rank passages")
    assert "user: Here are 2 passages" in text
    assert text.endswith("answer:")


def test_tokenizer_without_a_chat_format_warns_if_the_template_has_a_system_message() -> None:
    def warning(template: str, tokenizer: PreTrainedTokenizerBase) -> str:
        return ListwiseRenderer(load_template(template), tokenizer, 4096, answer_tokens=1).warning

    assert "has no chat template, so the prompt is plain text" in warning("first", uncased())
    assert warning("first_small", uncased()) == ""
    assert warning("first", byte_level()) == ""


def test_repair_of_long_runs_of_accents_takes_no_minute() -> None:
    pytest.importorskip("ftfy")
    marks = "\u0301\u0316" * 20_000
    assert len(PromptStyle(rank_llm=True).passage_text(f"x{marks}")) > len(marks)
