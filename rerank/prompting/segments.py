"""Tokenises the segments of a prompt: its passages, and the text between them.

Tokens can span the boundary of two segments ("." and a line end are one token of Llama-3), so white space counts as
part of the passage that it touches, and every segment is tokenised next to its neighbours' text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias, cast

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from rerank.util.byte_cache import BYTES_PER_TOKEN, cached_by_bytes

TokenIds: TypeAlias = tuple[int, ...]

#: Stands for a passage while other segments are tokenised.
PLACEHOLDER = "placeholder"
#: A text between its leading and its trailing white space.
_TRIMMED = re.compile(r"(\s*)(.*?)(\s*)", re.DOTALL)
#: This many characters after a passage show whether a token spans the boundary.
_RIGHT_CHARS = 8


@dataclass(frozen=True, slots=True)
class PassageContext:
    """The text next to a passage: the end of the left part, white space on both sides, the start of the right part."""

    left: str
    space_before: str
    space_after: str
    right: str


class SegmentTokenizer:
    """Tokenises prompts and their segments without adding special tokens; those written in a text are read as such.

    Works on a copy of the tokenizer that is configured once, because a tokenizer that one thread configures while
    another uses it raises "Already borrowed".
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._backend = Tokenizer.from_str(cast(PreTrainedTokenizerFast, tokenizer).backend_tokenizer.to_str())
        self._backend.encode_special_tokens = False
        self._backend.no_truncation()
        self._backend.no_padding()
        self.tokenize_passage = cached_by_bytes(
            lambda text, context: self.tokenize_passages([text], context)[0], segment_bytes
        )

    def tokenize(self, text: str) -> list[int]:
        return self._encode([text])[0]

    def token_ends(self, text: str) -> tuple[int, ...]:
        """Returns the end of each token of the text, in characters."""
        return tuple(end for _, end in self._backend.encode(text, add_special_tokens=False).offsets)

    def tokenize_passages(self, texts: Sequence[str], context: PassageContext) -> list[TokenIds | None]:
        """Returns the token ids of each text and its white space in a context, or None if a token spans a boundary."""
        anchor = PLACEHOLDER + context.space_after
        left, anchor_ids, with_right = self._encode([context.left, anchor, anchor + context.right])
        right = with_right[len(anchor_ids) :]
        before, after = context.left + context.space_before, context.space_after + context.right
        return [_strip(ids, left, right) for ids in self._encode([before + text + after for text in texts])]

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Encodes texts in parallel, without the offsets that a call of transformers' tokenizer computes as well."""
        return [encoding.ids for encoding in self._backend.encode_batch_fast(list(texts), add_special_tokens=False)]


def segment_bytes(ids: Sequence[int] | None, text: str, *_: object) -> int:
    return 4 * len(text) + BYTES_PER_TOKEN * len(ids or ())


def passage_contexts(parts: Sequence[str]) -> tuple[PassageContext, ...]:
    """Returns the contexts of the n passages between the n + 1 parts of a prompt."""
    trimmed = [match.groups() for part in parts if (match := _TRIMMED.fullmatch(part))]
    return tuple(
        PassageContext(left[-1:], before, after, right[:_RIGHT_CHARS])
        for (_, left, before), (after, right, _) in pairwise(trimmed)
    )


def split_segments(ids: list[int], separators: Sequence[TokenIds | None]) -> tuple[TokenIds, ...] | None:
    """Returns the token ids before, between and after the separators, or None if one is unknown or not found."""
    segments, start = list[TokenIds](), 0
    for separator in separators:
        size = len(separator or ())
        found = (place for place in range(start, len(ids)) if tuple(ids[place : place + size]) == separator)
        if (end := next(found, None)) is None:
            return None
        segments.append(tuple(ids[start:end]))
        start = end + size
    return *segments, tuple(ids[start:])


def _strip(ids: list[int], left: list[int], right: list[int]) -> TokenIds | None:
    """Returns the token ids between two known ends, or None if the ids do not begin and end with these."""
    end = len(ids) - len(right)
    matches = end >= len(left) and ids[: len(left)] == left and ids[end:] == right
    return tuple(ids[len(left) : end]) if matches else None
