"""Truncation of texts before they are tokenized, so that a long text costs about what its kept tokens cost."""

from __future__ import annotations

from collections.abc import Callable

#: Few texts have more characters per token; English has four to five.
CHARS_PER_TOKEN = 8
#: Tokens after the kept ones. A cut changes the tokens of the word and of the markup that it divides, which are fewer:
#: WordPiece reads a word of more than 100 characters as one unknown token, but up to 100 of them as up to 100 tokens.
_MARGIN_TOKENS = 128


def beginning(text: str, tokens: int, count: Callable[[str], int]) -> str:
    """The beginning of a text, which has the same first tokens; the whole text if it has few tokens.

    Reads `CHARS_PER_TOKEN` characters per token, and twice as many as long as they have too few tokens. So a text of up
    to tokens * CHARS_PER_TOKEN characters is returned as it is; a longer one that is cut has more than `tokens` tokens.

    Args:
        tokens: the number of first tokens that are kept.
        count: text → its number of tokens.
    """
    end = tokens * CHARS_PER_TOKEN
    while end < len(text) and count(text[:end]) < tokens + _MARGIN_TOKENS:
        end *= 2
    return text[:end]
