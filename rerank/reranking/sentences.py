"""Division of a text into chunks of whole sentences, with overlap. Each chunk is an exact slice of the text.

A text is read in slices (`read`) and divided with arrays (`divide`), so that a long text does not keep the interpreter
from other threads.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from rerank.types import InSlices

#: The place of a chunk's first character, and the place after its last one.
Span: TypeAlias = tuple[int, int]
#: Places in a text, in ascending order.
Places: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.int64]]"

#: The end of a sentence with the white space after it: a full stop and the like before white space, those of Chinese
#: and Japanese anywhere, line ends. An abbreviation ends a sentence, too, which only moves the border of a chunk.
_SENTENCE_END = re.compile(r"[.!?…][\"'”’)\]]*\s+|[。！？；]+\s*|\n\s*")
#: A token of more characters counts as several: WordPiece reads a long word as one unknown token, other models do not.
_TOKEN_CHARS = 32
#: Characters that are tokenized at a time, some 5 ms. A slice ends after white space, where a token ends too.
_SLICE_CHARS = 4096
_UP_TO_SPACE, _SPACE = re.compile(r".*\s", re.DOTALL), re.compile(r"\s*")


@dataclass(frozen=True, slots=True)
class ReadText:
    """The beginning of a text as far as it was read.

    Attributes:
        length: how much was read, in characters.
        sentences: the end of each sentence, with the white space after it; the last one is `length`.
        tokens: the end of each token.
    """

    length: int
    sentences: Places
    tokens: Places


def read(text: str, token_ends: Callable[[str], Places], max_tokens: int) -> InSlices[ReadText]:
    """Reads a text until it has had so many tokens, a slice at a time.

    Args:
        token_ends: a text → the end of each of its tokens, in characters.
    """
    sentences, tokens, count, start = list[Places](), list[Places](), 0, 0
    while start < len(text) and count < max_tokens:
        end = _slice_end(text, start)
        tokens.append(_without_long_tokens(token_ends(text[start:end])) + start)
        sentences.append(_places([match.end() for match in _SENTENCE_END.finditer(text, start, end)]))
        count += len(tokens[-1])
        start = end
        yield
    ends = np.concatenate([*sentences, _places([start] if start else [])])
    return ReadText(start, np.unique(ends), np.concatenate([*tokens, _places([])]))


def divide(text: ReadText, max_tokens: int, max_chunks: int) -> list[Span]:
    """Divides a text into chunks of at most `max_tokens` tokens, and returns the first `max_chunks` of them.

    A chunk is as many sentences as fit, and begins with the last sentence of the chunk before if there is room for
    another one after it. A sentence that is longer than a chunk is cut.
    """
    borders = _cut(text, max_tokens)  # of sentences, or pieces of them
    before = np.searchsorted(text.tokens, borders, side="right")  # the number of tokens before each border
    pieces, chunks, first = len(borders) - 1, list[Span](), 0
    while first < pieces and len(chunks) < max_chunks:
        last = max(first, int(np.searchsorted(before, before[first] + max_tokens, side="right")) - 2)
        chunks.append((int(borders[first]), int(borders[last + 1])))
        can_overlap = last > first and last + 1 < pieces and before[last + 2] - before[last] <= max_tokens
        first = last if can_overlap else last + 1
    return chunks


def _slice_end(text: str, start: int) -> int:
    """Finds the end of a slice, after white space if it has any."""
    match = _UP_TO_SPACE.match(text, start, start + _SLICE_CHARS)
    space = _SPACE.match(text, match.end() if match else min(len(text), start + _SLICE_CHARS))
    return space.end() if space else len(text)


def _cut(text: ReadText, max_tokens: int) -> Places:
    """Returns the borders of the sentences, with further ones in those of more than `max_tokens` tokens."""
    borders = np.concatenate([_places([0] if text.length else []), text.sentences])
    before = np.searchsorted(text.tokens, borders, side="right")
    (long,) = np.nonzero(np.diff(before) > max_tokens)
    cuts = [text.tokens[before[place] + max_tokens - 1 : before[place + 1] - 1 : max_tokens] for place in long]
    return np.unique(np.concatenate([borders, *cuts]))


def _without_long_tokens(ends: Places) -> Places:
    """Adds ends inside tokens of more than `_TOKEN_CHARS` characters."""
    if not (np.diff(ends, prepend=0) > _TOKEN_CHARS).any():
        return ends
    return _places(
        [cut for start, end in pairwise([0, *ends]) for cut in (*range(start + _TOKEN_CHARS, end, _TOKEN_CHARS), end)]
    )


def _places(places: list[int]) -> Places:
    return np.array(places, dtype=np.int64)
