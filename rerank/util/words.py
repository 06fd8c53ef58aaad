"""Divides texts into words, and words into stems, as Lucene's English analyser does."""

from __future__ import annotations

import re
import sys
from functools import lru_cache
from threading import Lock

import snowballstemmer

from rerank.util.combining import nfc

#: Words are read from this many characters of a query or a text: as many as both encoders read, and some more.
READ_CHARS = 4_000
#: The English words that are so frequent that Lucene leaves them out.
STOP_WORDS = frozenset({
    "a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it", "no", "not", "of",
    "on", "or", "such", "that", "the", "their", "then", "there", "these", "they", "this", "to", "was", "will", "with",
})  # fmt: skip
#: Distinct words whose stems are cached: a stem takes 30 microseconds, and texts share most of their words.
_KEPT_STEMS = 1 << 17

#: A word, with underscores inside but not around it, or a character of Chinese or Japanese, which have no spaces.
_WORD = re.compile(r"[{0}]|[^\W_{0}]+(?:_+[^\W_{0}]+)*".format(r"\u3040-\u30ff\u3400-\u9fff"))
_POSSESSIVE = re.compile(r"['\u2019]s\b")
_PORTER = snowballstemmer.stemmer("porter")
#: The stemmer is not thread-safe.
_LOCK = Lock()


def words(text: str) -> list[str]:
    """The words of a text in lower case, in the normal form NFC: combining marks would divide them."""
    return _WORD.findall(nfc(text).lower())


def stems(text: str) -> tuple[str, ...]:
    """The stems (Porter, 1980) of the words of a text that are no stop words, in the order of the text."""
    found = (stem(word) for word in words(_POSSESSIVE.sub("", text)) if word not in STOP_WORDS)
    return tuple(filter(None, found))  # nothing is left of the word "s"


@lru_cache(_KEPT_STEMS)
def stem(word: str) -> str:
    """The stem of a word in lower case."""
    with _LOCK:
        return sys.intern(_PORTER.stemWord(word))
