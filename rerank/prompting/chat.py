"""Writes conversations in the chat markup of a model, by the chat template of its tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jinja2
from transformers import PreTrainedTokenizerBase


def render_chat(
    tokenizer: PreTrainedTokenizerBase,
    system: str,
    user: str,
    turns: Sequence[tuple[str, str]] = (),
    thinks: bool = False,
) -> str:
    """Returns a system message and the user's turn in the model's chat markup, up to where the answer begins.

    Args:
        tokenizer: has a chat template.
        turns: turns of user and assistant before it.
        thinks: the model is to reason before it answers, if its chat template offers the choice.
    """
    said = [(role, text) for turn in turns for role, text in zip(("user", "assistant"), turn, strict=True)]
    said.append(("user", user))
    try:
        return _apply_chat_template(tokenizer, [("system", system), *said] if system else said, thinks)
    except jinja2.TemplateError:  # the template has no system role
        return _apply_chat_template(tokenizer, [("user", f"{system}\n{said[0][1]}"), *said[1:]], thinks)


def _apply_chat_template(tokenizer: PreTrainedTokenizerBase, said: Sequence[tuple[str, str]], thinks: bool) -> str:
    messages = [{"role": role, "content": text} for role, text in said]
    options: dict[str, Any] = {"enable_thinking": thinks}  # without it, Qwen3 begins with its reasoning
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **options)
    return str(text)
