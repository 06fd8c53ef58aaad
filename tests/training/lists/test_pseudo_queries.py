"""Pseudo queries: parts of a passage, and the passage without them."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rerank_training.lists.pseudo_queries import Span, first_words, leading_title, remove, sentence, truncate_words

TEXT = "A flea lives for a year. Deserts are dry! Is the moon, at 3.5 days, slow? It circles the earth in a month."


def test_every_sentence_of_four_words_or_more_is_sampled() -> None:
    sampled = {span.of(TEXT) for seed in range(100) if (span := sentence(TEXT, Random(seed)))}
    assert sampled == {
        "A flea lives for a year.",
        "Is the moon, at 3.5 days, slow?",
        "It circles the earth in a month.",
    }


@pytest.mark.parametrize("text", ["", " ", "Too short.", "word " * 41])
def test_text_without_a_fitting_sentence_gives_none(text: str) -> None:
    assert sentence(text, Random(0)) is None


def test_first_words_are_five_to_twelve() -> None:
    lengths = {len(span.of(TEXT).split()) for seed in range(100) if (span := first_words(TEXT, Random(seed)))}
    assert lengths == set(range(5, 13))


def test_first_words_of_a_shorter_text_are_none() -> None:
    assert first_words("only four words here", Random(0)) is None


@pytest.mark.parametrize(("title", "expected"), [("A flea", "A flea"), ("", None), ("Fleas", None)])
def test_title_is_found_only_at_the_start(title: str, expected: str | None) -> None:
    span = leading_title(TEXT, title)
    assert (span.of(TEXT) if span else None) == expected


@given(st.integers())
def test_only_the_sentence_is_removed(seed: int) -> None:
    span = sentence(TEXT, Random(seed))
    assert span is not None
    rest = remove(TEXT, span)
    assert rest is not None
    assert span.of(TEXT) not in rest
    assert sorted(f"{span.of(TEXT)} {rest}".split()) == sorted(TEXT.split())


def test_repetitions_are_removed_too() -> None:
    assert remove(f"On fleas {TEXT} On fleas", Span(0, 8)) == TEXT


def test_nothing_is_removed_when_too_little_would_be_left() -> None:
    assert remove("one two three four. five six", Span(0, 19)) is None


@given(text=st.text(alphabet="ab \n"), words=st.integers(1, 5))
def test_truncation_keeps_the_first_words_unchanged(text: str, words: int) -> None:
    assert text.startswith(truncate_words(text, words))
    assert truncate_words(text, words).split() == text.split()[:words]


def test_truncation_at_zero_keeps_everything() -> None:
    assert truncate_words(TEXT, 0) == TEXT
