"""Division of a text into parts of whole sentences, with overlap. Each part is an exact slice of the text."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TypeAlias

#: The place of a part's first character, and the place after its last one.
Span: TypeAlias = tuple[int, int]

#: The end of a sentence with the white space after it: a full stop and the like before white space, those of Chinese
#: and Japanese anywhere, line ends. An abbreviation ends a sentence, too, which only moves the border of a part.
_SENTENCE_END = re.compile(r"[.!?…][\"'”’)\]]*\s+|[。！？；]+\s*|\n\s*")
#: A token of more characters counts as several: WordPiece reads a long word as one unknown token, other models do not.
_TOKEN_CHARS = 32


def divide(text: str, token_ends: Sequence[int], max_tokens: int, max_parts: int) -> list[Span]:
    """The first `max_parts` parts of a text, of at most `max_tokens` tokens each; none of an empty text.

    A part is as many sentences as fit, and begins with the last sentence of the part before if there is room for
    another one after it. A sentence that is longer than a part is cut.

    Args:
        token_ends: the end of each token of the text, in characters.
    """
    ends = _without_long_tokens(token_ends)
    pieces = [piece for sentence in _sentences(text) for piece in _cut(sentence, ends, max_tokens)]
    tokens = [bisect_right(ends, end) - bisect_right(ends, start) for start, end in pieces]
    parts, first = list[Span](), 0
    while first < len(pieces) and len(parts) < max_parts:
        last, room = first, max_tokens - tokens[first]
        while last + 1 < len(pieces) and tokens[last + 1] <= room:
            last += 1
            room -= tokens[last]
        parts.append((pieces[first][0], pieces[last][1]))
        can_overlap = last > first and last + 1 < len(pieces) and tokens[last] + tokens[last + 1] <= max_tokens
        first = last if can_overlap else last + 1
    return parts


def _sentences(text: str) -> Iterator[Span]:
    """The sentences, each with the white space after it. Together they are the text."""
    ends = [match.end() for match in _SENTENCE_END.finditer(text)]
    return ((start, end) for start, end in pairwise([0, *ends, len(text)]) if start < end)


def _cut(sentence: Span, ends: Sequence[int], max_tokens: int) -> Iterator[Span]:
    """The sentence in pieces of at most `max_tokens` tokens."""
    start, end = sentence
    first, last = bisect_right(ends, start), bisect_right(ends, end)
    return pairwise([start, *ends[first + max_tokens - 1 : max(first, last - 1) : max_tokens], end])


def _without_long_tokens(ends: Sequence[int]) -> list[int]:
    """The ends of tokens, with further ones inside those of more than `_TOKEN_CHARS` characters."""
    return [
        cut for start, end in pairwise([0, *ends]) for cut in (*range(start + _TOKEN_CHARS, end, _TOKEN_CHARS), end)
    ]
