"""The small tokenizers split text as the public families do for which they are substitutes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from transformers import PreTrainedTokenizerFast

from tests.small_tokenizers import byte_level, byte_level_numbers, metaspace, uncased

Build = Callable[[], PreTrainedTokenizerFast]

instruct = partial(metaspace, chat="instruct")


@pytest.mark.parametrize(
    ("build", "text", "tokens"),
    [
        # A letter that begins a word is another token than a letter after a bracket.
        (metaspace, "A", ["▁A"]),
        (metaspace, " A", ["▁", "▁A"]),
        (metaspace, "x[A", ["▁x", "[", "A"]),
        (byte_level, "A", ["A"]),
        (byte_level, " A", ["ĠA"]),
        # The token of a bracket depends on the text before it.
        (metaspace, "[", ["▁["]),
        (metaspace, " [", ["▁", "▁["]),
        (metaspace, "\n[", ["▁", "<0x0A>", "["]),
        (metaspace, "x[", ["▁x", "["]),
        (metaspace, "][", ["▁", "]["]),
        (byte_level, "\n\n[", ["ĊĊ", "["]),
        (byte_level, "][", ["]", "["]),
        (byte_level, "> [A", [">", "Ġ[", "A"]),
        (byte_level_numbers, "\n\n[", ["ĊĊ", "["]),
        (byte_level_numbers, "][", ["]", "["]),
        # Numbers are split into digits, or into groups of three.
        (metaspace, "[10]", ["▁[", "1", "0", "]"]),
        (byte_level, "[10]", ["[", "1", "0", "]"]),
        (byte_level, " 2345", ["Ġ", "2", "3", "4", "5"]),
        (byte_level_numbers, "1000", ["100", "0"]),
        (byte_level_numbers, "123456", ["123", "456"]),
        (byte_level_numbers, "007", ["007"]),
        (byte_level_numbers, " 12", ["Ġ", "12"]),
        # An uncased tokenizer drops white space.
        (uncased, "[A]", ["[", "a", "]"]),
        (uncased, "][", ["]", "["]),
        (uncased, "\n\n[B", ["[", "b"]),
        (uncased, "Cab 10", ["c", "##a", "##b", "1", "##0"]),
        # Other characters are bytes, and chat markers can be plain text.
        (metaspace, "é\n", ["▁", "<0xC3>", "<0xA9>", "<0x0A>"]),
        (metaspace, "<|user|>", ["▁", "<", "|", *"user", "|", ">"]),
        (instruct, " [/INST]", ["▁", "▁[", "/", "I", "N", "S", "T", "]"]),
    ],
)
def test_text_is_split_into_these_tokens(build: Build, text: str, tokens: list[str]) -> None:
    assert build().tokenize(text) == tokens


# BOS and chat templates


# Letters and numbers
