"""Queries for passages that have none: parts of the passage itself. Pure; all chance comes from the given generator."""

from __future__ import annotations

import re
from dataclasses import dataclass
from random import Random

#: A sentence with fewer words asks for nothing; one with more is no query.
_SENTENCE_WORDS = range(4, 41)
_FIRST_WORDS = range(5, 13)
#: A passage from which a part was taken must still say something.
_MIN_REST_WORDS = 8

_SENTENCE = re.compile(r"\S.*?(?:[.!?](?=\s|$)|$)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a text, from character `start` to before `end`."""

    start: int
    end: int

    def of(self, text: str) -> str:
        return text[self.start : self.end]


def sentence(text: str, random: Random) -> Span | None:
    """Any sentence of 4 to 40 words; None where there is none."""
    spans = [Span(match.start(), match.end()) for match in _SENTENCE.finditer(text)]
    fitting = [span for span in spans if len(span.of(text).split()) in _SENTENCE_WORDS]
    return random.choice(fitting) if fitting else None


def first_words(text: str, random: Random) -> Span | None:
    """The first 5 to 12 words; None where the text has fewer."""
    words = list(re.finditer(r"\S+", text))
    n = random.choice(_FIRST_WORDS)
    return Span(words[0].start(), words[n - 1].end()) if len(words) >= n else None


def beginning(text: str, title: str) -> Span | None:
    """The title that a text begins with; None where it has none."""
    return Span(0, len(title)) if title and text.startswith(title) else None


def without(text: str, span: Span) -> str | None:
    """The text with a part taken out, wherever it stands (abstracts repeat titles); None where too little is left."""
    rest = " ".join(piece.strip() for piece in text.split(span.of(text)) if piece.strip())
    return rest if len(rest.split()) >= _MIN_REST_WORDS else None


def cut(text: str, words: int) -> str:
    """The first words of a text; 0: all of it."""
    end = next((m.end() for number, m in enumerate(re.finditer(r"\S+", text), start=1) if number == words), len(text))
    return text[:end]
