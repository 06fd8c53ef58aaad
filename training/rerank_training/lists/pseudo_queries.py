"""Pseudo queries: sentences of a passage that serve as queries for it."""

from __future__ import annotations

import re
from random import Random

#: Lengths of a sentence that can serve as a query.
_SENTENCE_WORDS = range(4, 41)
#: A passage from which the query is removed must keep this many words.
_MIN_REMAINING_WORDS = 8

_SENTENCE = re.compile(r"\S.*?(?:[.!?](?=\s|$)|$)", re.DOTALL)


def sentence(text: str, random: Random) -> str | None:
    """A random sentence of 4 to 40 words; None if there is none."""
    fitting = [match[0] for match in _SENTENCE.finditer(text) if len(match[0].split()) in _SENTENCE_WORDS]
    return random.choice(fitting) if fitting else None


def remove(text: str, part: str) -> str | None:
    """Removes every occurrence of a part from a text; returns None if too little is left."""
    remaining = " ".join(piece.strip() for piece in text.split(part) if piece.strip())
    return remaining if len(remaining.split()) >= _MIN_REMAINING_WORDS else None


def truncate_words(text: str, words: int) -> str:
    """The first `words` words of a text; 0: the whole text."""
    end = next((m.end() for number, m in enumerate(re.finditer(r"\S+", text), start=1) if number == words), len(text))
    return text[:end]
