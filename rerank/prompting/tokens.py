"""Tokens of the texts of prompts: texts are cut to a number of them, and tokenized once for all prompts of a request.

Tokens can span the border of a passage and the text around it: "." and a line end are one token of Llama-3. So a
passage is cut at its first and last space, where tokenizers cut anyway. What is between keeps its tokens at any
place; the rest is tokenized with the text around it.
"""

from __future__ import annotations

import re
import unicodedata
from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import cast

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from rerank.errors import InvalidRequest
from rerank.types import Passage, TextTokens

#: Few texts have more characters per token; English has four to five.
CHARS_PER_TOKEN = 8
#: Tokens after the kept ones. A cut changes the tokens of the word and of the markup that it divides, which are fewer:
#: WordPiece reads a word of more than 100 characters as one unknown token, but up to 100 of them as up to 100 tokens.
_MARGIN_TOKENS = 128
#: The minimum length of a truncated passage; fewer tokens are not worth reading.
_MIN_PASSAGE_TOKENS = 8
#: A truncated passage may take a token or two more than the same text did inside the full passage.
SLACK_TOKENS = 2
#: How vocabularies write tokens with a space after something else. Few have any, most of them of other white space.
_INNER_SPACE = re.compile(r"[^ Ġ▁][ Ġ▁]")
#: A space that no token may hold, because texts are cut there.
_SPACE_AFTER_WORD = re.compile(r"\S ")
#: A space alone between two visible ASCII characters, letters or digits.
_GAP = re.compile(r"(?<=[!-~\w]) (?=[!-~\w])")
#: A word in front of a text makes the tokenizer read it as the middle of one.
_WORD = "x"
#: A text with words, numbers and signs next to one another.
_SAMPLE = (
    "Robins' eggs, 27 of 10 000 (see p. 3): it's 5% so — “naïve” he said… we'll 'go' <b> [sic] & 日本 語 Straße , ."
)


class PromptTokenizer:
    """Tokenizes texts as a tokenizer does without its special tokens, safe to share among threads."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        # A copy that is configured once: one that a thread configures while another uses it raises "Already borrowed".
        self._backend = Tokenizer.from_str(cast(PreTrainedTokenizerFast, tokenizer).backend_tokenizer.to_str())
        self._backend.encode_special_tokens = False  # chat markup is read as special tokens
        self._backend.no_truncation()
        self._backend.no_padding()

    def ids(self, text: str) -> list[int]:
        return self._ids([text])[0]

    def tokens(self, texts: Sequence[str]) -> list[TextTokens]:
        encodings = self._backend.encode_batch(list(texts), add_special_tokens=False)
        return [_text_tokens(encoding.ids, encoding.offsets) for encoding in encodings]

    def ends(self, text: str) -> Sequence[int]:
        """Returns the end of each token of a text, in characters."""
        return self.tokens([text])[0].ends

    def ids_of_prompt(
        self, prompt: str, passages: Sequence[Passage], tokens: Sequence[TextTokens], shown: Sequence[str]
    ) -> list[int]:
        """Returns the token ids of a prompt, equal to `ids(prompt)`.

        Args:
            passages: in the order of the prompt.
            tokens: of their texts.
            shown: what the prompt shows of each: its text, or the beginning of it.
        """
        if not self.cuts_at_spaces:
            return self.ids(prompt)
        borders, inner, start, word = list[str](), list[Sequence[int]](), 0, ""
        for passage, of_passage, text in zip(passages, tokens, shown, strict=True):
            at, first, last = prompt.find(text, start), _first_gap(text), _last_gap(text)
            if text == passage.text and _is_gap(prompt, at + len(text)):
                last = len(text)
            if at < 0 or not 0 <= first < last:
                continue
            borders.append(word + prompt[start : at + first])
            inner.append(_ids_between(of_passage, first, last))
            start, word = at + last, _WORD
        ids, *others = self._ids([*borders, word + prompt[start:]])
        for of_text, of_border in zip(inner, others, strict=True):
            ids += of_text
            ids += of_border[self._word_tokens :]
        return ids

    def _ids(self, texts: list[str]) -> list[list[int]]:
        """Returns the ids alone, without the offsets that other calls compute as well."""
        return [encoding.ids for encoding in self._backend.encode_batch_fast(texts, add_special_tokens=False)]

    @cached_property
    def _word_tokens(self) -> int:
        return len(self.ids(_WORD))

    @cached_property
    def cuts_at_spaces(self) -> bool:
        """True if no token spans a gap, and a text is read alike on both sides of one."""
        found = [id_ for token, id_ in self._backend.get_vocab().items() if _INNER_SPACE.search(token)]
        if any(_SPACE_AFTER_WORD.search(self._backend.decode([id_], skip_special_tokens=False)) for id_ in found):
            return False
        (whole,) = self.tokens([_SAMPLE])
        for at in (at for at in range(len(_SAMPLE)) if _is_gap(_SAMPLE, at)):
            before, after = self._ids([_SAMPLE[:at], _WORD + _SAMPLE[at:]])
            rest = after[self._word_tokens :]
            if [*whole.ids] != before + rest or [*_ids_between(whole, at, len(_SAMPLE))] != rest:
                return False
        return True


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


def _text_tokens(ids: list[int], spans: list[tuple[int, int]]) -> TextTokens:
    starts, ends = zip(*spans, strict=True) if spans else ((), ())
    return TextTokens(array("i", ids), array("i", starts), array("i", ends))


def _ids_between(tokens: TextTokens, start: int, end: int) -> array[int]:
    """Returns the ids of a part of a text that begins and ends with tokens."""
    return tokens.ids[bisect_left(tokens.starts, start) : bisect_left(tokens.starts, end)]


def _first_gap(text: str) -> int:
    at = text.find(" ")
    while at >= 0 and not _is_gap(text, at):
        at = text.find(" ", at + 1)
    return at


def _last_gap(text: str) -> int:
    at = text.rfind(" ")
    while at >= 0 and not _is_gap(text, at):
        at = text.rfind(" ", 0, at)
    return at


def _is_gap(text: str, at: int) -> bool:
    """True if a space is there, alone between two visible characters that normalisation keeps, and not as a space."""
    return bool(_GAP.match(text, at)) and unicodedata.is_normalized("NFKC", text[at - 1 : at + 2])
