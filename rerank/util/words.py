"""Divides texts into words, and words into stems, as Lucene's English analyser does."""

from __future__ import annotations

import re
import sys
from functools import lru_cache
from threading import Lock

import snowballstemmer

from rerank.util.combining import nfc

#: Characters of a query or passage from whose start words are read: somewhat more than the encoders read.
READ_CHARS = 4_000
#: Lucene's English stop words.
STOP_WORDS = frozenset({
    "a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it", "no", "not", "of",
    "on", "or", "such", "that", "the", "their", "then", "there", "these", "they", "this", "to", "was", "will", "with",
})  # fmt: skip
#: Words whose stems are cached: a stem takes 30 microseconds, and texts share most of their words.
_KEPT_STEMS = 1 << 17

#: A word, or one character of Chinese or Japanese, which have no spaces. Underscores count inside of a word only.
_WORD = re.compile(r"[{0}]|[^\W_{0}]+(?:_+[^\W_{0}]+)*".format(r"\u3040-\u30ff\u3400-\u9fff"))
_POSSESSIVE = re.compile(r"['\u2019]s\b")
_PORTER = snowballstemmer.stemmer("porter")
#: The stemmer is not thread-safe.
_LOCK = Lock()


def words(text: str) -> list[str]:
    """The words of a text in lower case, in the normal form NFC, because a combining mark would divide a word."""
    return _WORD.findall(nfc(text).lower())


def stems(text: str) -> tuple[str, ...]:
    """The stems (Porter, 1980) of a text's words, without stop words, in the order of the text."""
    found = (stem(word) for word in words(_POSSESSIVE.sub("", text)) if word not in STOP_WORDS)
    return tuple(filter(None, found))  # the stem of "s" is empty


@lru_cache(_KEPT_STEMS)
def stem(word: str) -> str:
    """The stem of a word in lower case."""
    with _LOCK:
        return sys.intern(_PORTER.stemWord(word))
