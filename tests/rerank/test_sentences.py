"""Division into parts: exact slices, whole sentences where they fit, at most so many tokens, nothing left out."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerank.sentences import divide

#: A word, or any other character but white space. The characters of Chinese are tokens of their own.
_TOKEN = re.compile(r"[a-zA-Zé]+|\S")


def token_ends(text: str) -> list[int]:
    return [match.end() for match in _TOKEN.finditer(text)]


def parts(text: str, max_tokens: int, max_parts: int = 1000) -> list[str]:
    return [text[start:end] for start, end in divide(text, token_ends(text), max_tokens, max_parts)]


def test_part_is_as_many_sentences_as_fit_and_begins_with_the_last_one_of_the_part_before() -> None:
    text = "One two. Three four five. Six. Seven eight."
    assert parts(text, 7) == ["One two. Three four five. ", "Three four five. Six. ", "Six. Seven eight."]
    assert parts(text, 7, max_parts=2) == ["One two. Three four five. ", "Three four five. Six. "]
    assert parts(text, 3) == ["One two. ", "Three four five", ". Six. ", "Seven eight."]
    assert parts(text, 100) == [text]


def test_sentence_that_is_longer_than_a_part_is_cut_after_tokens() -> None:
    assert parts("one two three four five. Six.", 2) == ["one two", " three four", " five. ", "Six."]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (" \n ", [" \n "]),
        ("one", ["one"]),
        ("世界很大。我们很小！你呢？", ["世界很大。", "我们很小！", "你呢？"]),
        ("海海海海海海海", ["海海海海海", "海海"]),
        ("🙂🙂 🙂🙂🙂🙂", ["🙂🙂 🙂🙂🙂", "🙂"]),
        ('He said "no." She left', ['He said "no.', '" She left']),
        ("a\nb\n\nc d e f", ["a\nb\n\n", "b\n\nc d e f"]),
    ],
)
def test_texts_without_english_sentences(text: str, expected: list[str]) -> None:
    assert parts(text, 5) == expected


def test_long_token_counts_as_several() -> None:
    """One token of WordPiece may be a word of any length."""
    text = "x" * 1000
    spans = divide(text, [1000], 10, 1000)
    assert spans == [(0, 320), (320, 640), (640, 960), (960, 1000)]
    assert divide(text, [1000], 10, 2) == spans[:2]


@given(st.text("ab .!?\n。世é🙂\ud800", max_size=80), st.integers(1, 9), st.integers(1, 5))
def test_parts_cover_the_text_overlap_and_keep_the_limit(text: str, tokens: int, most: int) -> None:
    ends, spans = token_ends(text), divide(text, token_ends(text), tokens, 1000)
    assert {place for start, end in spans for place in range(start, end)} == set(range(len(text)))
    assert all(0 <= start < end <= len(text) for start, end in spans)
    assert all(sum(start < each <= end for each in ends) <= tokens for start, end in spans)
    for (start, end), (following, its_end) in pairwise(spans):
        assert start < following <= end < its_end
    assert divide(text, ends, tokens, most) == spans[:most]
