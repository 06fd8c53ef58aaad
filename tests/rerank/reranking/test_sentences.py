"""Division into chunks: exact slices, whole sentences where they fit, at most so many tokens, nothing left out."""

from __future__ import annotations

import random
import re
from contextlib import suppress
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerank.reranking.sentences import Places, Span, divide, read
from tests.slices import finished

#: A word, or any other character but white space. The characters of Chinese are tokens of their own.
_TOKEN = re.compile(r"[a-zA-Zé]+|\S")


def token_ends(text: str) -> Places:
    return np.array([match.end() for match in _TOKEN.finditer(text)], dtype=np.int64)


def spans_of(text: str, max_tokens: int, max_chunks: int = 1000) -> list[Span]:
    return divide(finished(read(text, token_ends, 10**6)), max_tokens, max_chunks)


def chunks(text: str, max_tokens: int, max_chunks: int = 1000) -> list[str]:
    return [text[start:end] for start, end in spans_of(text, max_tokens, max_chunks)]


def test_part_is_as_many_sentences_as_fit_and_begins_with_the_last_one_of_the_part_before() -> None:
    text = "One two. Three four five. Six. Seven eight."
    assert chunks(text, 7) == ["One two. Three four five. ", "Three four five. Six. ", "Six. Seven eight."]
    assert chunks(text, 7, max_chunks=2) == ["One two. Three four five. ", "Three four five. Six. "]
    assert chunks(text, 3) == ["One two. ", "Three four five", ". Six. ", "Seven eight."]
    assert chunks(text, 100) == [text]


def test_sentence_that_is_longer_than_a_part_is_cut_after_tokens() -> None:
    assert chunks("one two three four five. Six.", 2) == ["one two", " three four", " five. ", "Six."]


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
    assert chunks(text, 5) == expected


@given(st.text("ab .!?\n。世é🙂\ud800", max_size=80), st.integers(1, 9), st.integers(1, 5))
def test_chunks_cover_the_text_overlap_and_keep_the_limit(text: str, tokens: int, most: int) -> None:
    ends, spans = token_ends(text), spans_of(text, tokens)
    assert {place for start, end in spans for place in range(start, end)} == set(range(len(text)))
    assert all(0 <= start < end <= len(text) for start, end in spans)
    assert all(sum(start < place <= end for place in ends) <= tokens for start, end in spans)
    for (start, end), (following, its_end) in pairwise(spans):
        assert start < following <= end < its_end
    assert spans_of(text, tokens, most) == spans[:most]


def slow_chunks(text: str, max_tokens: int) -> list[Span]:
    """The chunks of a text of short sentences, one after the other."""
    ends = [0, *(match.end() for match in re.finditer(r"[.]\s+", text)), len(text)]
    pieces = [(start, end) for start, end in pairwise(ends) if start < end]
    tokens = [len(_TOKEN.findall(text[start:end])) for start, end in pieces]
    found, first = list[Span](), 0
    while first < len(pieces):
        last = first
        while last + 1 < len(pieces) and sum(tokens[first : last + 2]) <= max_tokens:
            last += 1
        found.append((pieces[first][0], pieces[last][1]))
        can_overlap = last > first and last + 1 < len(pieces) and tokens[last] + tokens[last + 1] <= max_tokens
        first = last if can_overlap else last + 1
    return found


@pytest.mark.parametrize("seed", range(3))
def test_text_of_several_slices_is_divided_as_one(seed: int) -> None:
    draw = random.Random(seed)
    words = [draw.choice(["a", "flea", "lives", "long.", "Then.  ", ".", "é"]) for _ in range(8000)]
    text = " ".join(words)
    slices = 0
    reading = read(text, token_ends, 10**6)
    with suppress(StopIteration):
        while True:
            next(reading)
            slices += 1
    assert slices > 5
    assert spans_of(text, 30, 10_000) == slow_chunks(text, 30)


def test_no_more_slices_are_read_than_were_asked_for() -> None:
    lengths = list[int]()

    def counted(text: str) -> Places:
        lengths.append(len(text))
        return token_ends(text)

    found = finished(read("a. " * 66_000, counted, 5000))
    assert 5000 <= len(found.tokens) < 10_000
    assert sum(lengths) == found.length < 20_000
    assert max(lengths) < 5000, "others wait for one slice at most"
