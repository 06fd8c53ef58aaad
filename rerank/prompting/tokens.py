"""Cuts texts of prompts to a number of tokens, and tokenizes them once for all prompts of a request.

A token can span the border between a passage and the text around it: "." and a line end are one token of Llama-3. So
passages are divided at their first and last space, where tokenizers divide anyway. The middle part has the same tokens
in every prompt; the two other parts are tokenized together with the text around them.
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
#: Number of tokens between the last token that is kept and the cut. A cut changes the tokens of the word or the markup
#: that it divides, and these have fewer tokens: WordPiece reads a word of 100 characters as at most 100 tokens.
_MARGIN_TOKENS = 128
#: Smallest number of tokens of a truncated passage; fewer tokens are not worth reading.
_MIN_PASSAGE_TOKENS = 8
#: Number of tokens reserved per passage: a truncated text may have one or two more than inside the full passage.
SLACK_TOKENS = 2
#: A token of a vocabulary with a space after another character. Few vocabularies have such tokens.
_INNER_SPACE = re.compile(r"[^ Ġ▁][ Ġ▁]")
#: No token may have a space after a visible character, because texts are divided there.
_SPACE_AFTER_WORD = re.compile(r"\S ")
#: A gap: a single space between two characters that are visible ASCII, letters or digits.
_GAP = re.compile(r"(?<=[!-~\w]) (?=[!-~\w])")
#: Put before the second part of a divided text, so that a tokenizer does not read it as the beginning of a text.
_WORD = "x"
#: A text that shows whether a tokenizer reads parts of it as it reads the whole.
_SAMPLE = (
    "Robins' eggs, 27 of 10 000 (see p. 3): it's 5% so — “naïve” he said… we'll 'go' <b> [sic] & 日本 語 Straße , ."
)


class PromptTokenizer:
    """Tokenizes texts as a tokenizer does, but adds no special tokens. Threads may share it.

    Chat markup in a text, such as <|im_end|>, is read as a special token.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        # A copy, because a tokenizer that one thread configures while another uses it raises "Already borrowed".
        self._backend = Tokenizer.from_str(cast(PreTrainedTokenizerFast, tokenizer).backend_tokenizer.to_str())
        self._backend.encode_special_tokens = False  # chat markup is read as special tokens
        self._backend.no_truncation()
        self._backend.no_padding()

    def ids(self, text: str) -> list[int]:
        """Returns the token ids of a text."""
        return self._ids([text])[0]

    def tokens(self, texts: Sequence[str]) -> list[TextTokens]:
        """Returns the token ids of texts, and the start and end of each token in characters."""
        encodings = self._backend.encode_batch(list(texts), add_special_tokens=False)
        return [_text_tokens(encoding.ids, encoding.offsets) for encoding in encodings]

    def ends(self, text: str) -> Sequence[int]:
        """Returns the end of each token of a text, in characters."""
        return self.tokens([text])[0].ends

    def ids_of_prompt(
        self, prompt: str, passages: Sequence[Passage], tokens: Sequence[TextTokens], shown: Sequence[str]
    ) -> list[int]:
        """Returns the token ids of a prompt, equal to `ids(prompt)`, but reuses the tokens of the passages.

        Args:
            passages: the passages in the order of the prompt.
            tokens: the tokens of the passages' texts.
            shown: for each passage, its text in the prompt: the whole text or its beginning.
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
        """Returns the ids of texts. Faster than `tokens`, because offsets are not computed."""
        return [encoding.ids for encoding in self._backend.encode_batch_fast(texts, add_special_tokens=False)]

    @cached_property
    def _word_tokens(self) -> int:
        return len(self.ids(_WORD))

    @cached_property
    def cuts_at_spaces(self) -> bool:
        """True if no token spans a gap, and the parts of a text around a gap have the same tokens as in the whole text.

        The second condition is tested at all gaps of `_SAMPLE`.
        """
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
    """Returns a beginning of a text with the same first `tokens` tokens, or the whole text if it is short.

    It begins with `CHARS_PER_TOKEN` characters per token, and doubles their number while they have too few tokens. So a
    text of up to tokens * CHARS_PER_TOKEN characters is returned whole, and a cut text has more than `tokens` tokens.

    Args:
        tokens: the number of first tokens that are kept.
        count: text → its number of tokens.
    """
    end = (tokens + _MARGIN_TOKENS) * CHARS_PER_TOKEN
    while end < len(text) and count(text[:end]) < tokens + _MARGIN_TOKENS:
        end *= 2
    return text[:end]


def first_tokens(text: str, tokens: int, token_ends: Callable[[str], Sequence[int] | npt.NDArray[np.int64]]) -> str:
    """Returns the text up to the end of its first `tokens` tokens; the whole text if it has fewer tokens.

    Args:
        token_ends: text → the end of each of its tokens, in characters.
    """
    ends = token_ends(beginning(text, tokens, lambda start: len(token_ends(start))))
    return text if len(ends) <= tokens else text[: ends[tokens - 1]]


def ending(text: str, tokens: int, count: Callable[[str], int]) -> str:
    """Returns an end of a text with the same last `tokens` tokens, or a short text whole. See `beginning`."""
    chars = tokens * CHARS_PER_TOKEN
    while chars < len(text) and count(text[-chars:]) < tokens + _MARGIN_TOKENS:
        chars *= 2
    return text[-chars:]


def passage_limit(lengths: Sequence[int], room: int, prompt_tokens: int) -> int:
    """Returns the largest number of tokens per passage at which all passages fit.

    Long passages get the tokens that short ones do not need.

    Args:
        lengths: number of tokens of each passage; their sum exceeds `room`.
        room: number of tokens for all passages together.
        prompt_tokens: largest number of tokens of a prompt, for the error.

    Raises:
        InvalidRequest: query and instruction leave fewer than 8 tokens per passage.
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
    """Returns the ids of the tokens from character `start` to `end`. Both are borders of tokens."""
    return tokens.ids[bisect_left(tokens.starts, start) : bisect_left(tokens.starts, end)]


def _first_gap(text: str) -> int:
    """Returns the index of the first gap, or -1."""
    at = text.find(" ")
    while at >= 0 and not _is_gap(text, at):
        at = text.find(" ", at + 1)
    return at


def _last_gap(text: str) -> int:
    """Returns the index of the last gap, or -1."""
    at = text.rfind(" ")
    while at >= 0 and not _is_gap(text, at):
        at = text.rfind(" ", 0, at)
    return at


def _is_gap(text: str, at: int) -> bool:
    """True if the character at `at` is a gap that normalisation (NFKC) does not change."""
    return bool(_GAP.match(text, at)) and unicodedata.is_normalized("NFKC", text[at - 1 : at + 2])
