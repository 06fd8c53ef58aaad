"""Truncates texts: before they are tokenized, so that their ends cost nothing, and to fit a prompt."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from rerank.errors import InvalidRequest

#: Few texts have more characters per token; English has four to five.
CHARS_PER_TOKEN = 8
#: Tokens after the kept ones. A cut changes the tokens of the word and of the markup that it divides, which are fewer:
#: WordPiece reads a word of more than 100 characters as one unknown token, but up to 100 of them as up to 100 tokens.
_MARGIN_TOKENS = 128
#: The minimum length of a truncated passage; fewer tokens are not worth reading.
_MIN_PASSAGE_TOKENS = 8
#: A truncated passage may take a token or two more than the same text did inside the full passage.
SLACK_TOKENS = 2


def beginning(text: str, tokens: int, count: Callable[[str], int]) -> str:
    """Returns a beginning of a text that has the same first tokens, or the whole text if it has few.

    Reads `CHARS_PER_TOKEN` characters per token, and twice as many as long as they have too few tokens. So a text of up
    to tokens * CHARS_PER_TOKEN characters is returned as it is; a longer one that is cut has more than `tokens` tokens.

    Args:
        tokens: the number of first tokens that are kept.
        count: text → its number of tokens.
    """
    end = (tokens + _MARGIN_TOKENS) * CHARS_PER_TOKEN
    while end < len(text) and count(text[:end]) < tokens + _MARGIN_TOKENS:
        end *= 2
    return text[:end]


def first_tokens(text: str, tokens: int, token_ends: Callable[[str], Sequence[int] | npt.NDArray[np.int64]]) -> str:
    """Returns the text up to the end of its first `tokens` tokens; the whole text if it has no more.

    Args:
        token_ends: text → the end of each of its tokens, in characters.
    """
    ends = token_ends(beginning(text, tokens, lambda start: len(token_ends(start))))
    return text if len(ends) <= tokens else text[: ends[tokens - 1]]


def ending(text: str, tokens: int, count: Callable[[str], int]) -> str:
    """Returns an end of a text that has the same last tokens, or the whole text if it has few; see `beginning`."""
    chars = tokens * CHARS_PER_TOKEN
    while chars < len(text) and count(text[-chars:]) < tokens + _MARGIN_TOKENS:
        chars *= 2
    return text[-chars:]


def passage_limit(lengths: Sequence[int], room: int, prompt_tokens: int) -> int:
    """Returns the most tokens of a passage so that all fit. Short passages leave their share to long ones.

    Args:
        lengths: of the passages, in tokens, which do not fit.
        room: tokens for all of them.
        prompt_tokens: tokens of the whole prompt.

    Raises:
        InvalidRequest: the query leaves too little room.
    """
    limit = 0
    for shorter, length in enumerate(sorted(lengths)):
        limit = room // (len(lengths) - shorter) - SLACK_TOKENS
        if length > limit:
            break
        room -= length + SLACK_TOKENS
    if limit < _MIN_PASSAGE_TOKENS:
        raise InvalidRequest(
            "query",
            f"query and instruction leave {max(limit, 0)} of the model's {prompt_tokens} tokens for each of the "
            f"{len(lengths)} passages of a window, at least {_MIN_PASSAGE_TOKENS} are needed; use a shorter query or a "
            "smaller window_size",
            {"limit": str(prompt_tokens)},
        )
    return limit
