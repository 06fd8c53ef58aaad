"""Pseudo queries: parts of a passage that serve as queries for it. All randomness comes from the given generator."""

from __future__ import annotations

import re
from dataclasses import dataclass
from random import Random

#: Lengths of a sentence that can serve as a query.
_SENTENCE_WORDS = range(4, 41)
_FIRST_WORDS = range(5, 13)
#: A passage from which the query is removed must keep this many words.
_MIN_REMAINING_WORDS = 8

_SENTENCE = re.compile(r"\S.*?(?:[.!?](?=\s|$)|$)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Span:
    """Part of a text, from character `start` up to but not including `end`."""

    start: int
    end: int

    def of(self, text: str) -> str:
        return text[self.start : self.end]


def sentence(text: str, random: Random) -> Span | None:
    """A random sentence of 4 to 40 words; None if there is none."""
    spans = [Span(match.start(), match.end()) for match in _SENTENCE.finditer(text)]
    fitting = [span for span in spans if len(span.of(text).split()) in _SENTENCE_WORDS]
    return random.choice(fitting) if fitting else None


def first_words(text: str, random: Random) -> Span | None:
    """The first 5 to 12 words, a random number of them; None if the text has fewer."""
    words = list(re.finditer(r"\S+", text))
    n = random.choice(_FIRST_WORDS)
    return Span(words[0].start(), words[n - 1].end()) if len(words) >= n else None


def leading_title(text: str, title: str) -> Span | None:
    """The title at the start of the text; None if the text does not start with a title."""
    return Span(0, len(title)) if title and text.startswith(title) else None


def remove(text: str, span: Span) -> str | None:
    """The text without any occurrence of the span's text (abstracts repeat titles); None if too little is left."""
    remaining = " ".join(part.strip() for part in text.split(span.of(text)) if part.strip())
    return remaining if len(remaining.split()) >= _MIN_REMAINING_WORDS else None


def truncate_words(text: str, words: int) -> str:
    """The first `words` words of a text; 0: the whole text."""
    end = next((m.end() for number, m in enumerate(re.finditer(r"\S+", text), start=1) if number == words), len(text))
    return text[:end]
