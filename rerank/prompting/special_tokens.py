"""Special tokens in texts from outside: divided, so that a tokenizer reads them as text."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

from transformers import PreTrainedTokenizerBase


def markup_divider(tokenizer: PreTrainedTokenizerBase, *patterns: str) -> Callable[[str], str]:
    """A function that puts a space after the first character of each special or added token of a text.

    Args:
        patterns: regular expressions of further markup that is divided alike.
    """
    tokens = [*tokenizer.all_special_tokens, *map(str, tokenizer.added_tokens_encoder)]
    longest_first = sorted({re.escape(token) for token in tokens if len(token) > 1}, key=len, reverse=True)
    markup = re.compile("|".join([*longest_first, *patterns]) or r"(?!)")
    return partial(markup.sub, _divided)


def _divided(match: re.Match[str]) -> str:
    return f"{match[0][0]} {match[0][1:]}"
