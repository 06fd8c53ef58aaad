"""A pseudo-query is a part of its passage, and what is left can be read."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rerank_training.pseudo_queries import Span, beginning, cut, first_words, sentence, without

TEXT = "A flea lives for a year. Deserts are dry! Is the moon, at 3.5 days, slow? It circles the earth in a month."


def test_every_sentence_of_four_words_or_more_is_drawn() -> None:
    drawn = {span.of(TEXT) for seed in range(100) if (span := sentence(TEXT, Random(seed)))}
    assert drawn == {
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
def test_title_is_what_the_text_begins_with(title: str, expected: str | None) -> None:
    span = beginning(TEXT, title)
    assert (span.of(TEXT) if span else None) == expected


@given(st.integers())
def test_removed_sentence_is_gone_and_the_rest_is_there(seed: int) -> None:
    span = sentence(TEXT, Random(seed))
    assert span is not None
    rest = without(TEXT, span)
    assert rest is not None
    assert span.of(TEXT) not in rest
    assert sorted(f"{span.of(TEXT)} {rest}".split()) == sorted(TEXT.split())


def test_repetition_of_the_part_is_removed_too() -> None:
    assert without(f"On fleas {TEXT} On fleas", Span(0, 8)) == TEXT


def test_nothing_is_removed_where_too_little_would_be_left() -> None:
    assert without("one two three four. five six", Span(0, 19)) is None


@given(text=st.text(alphabet="ab \n"), words=st.integers(1, 5))
def test_cut_keeps_the_first_words_as_they_stand(text: str, words: int) -> None:
    assert text.startswith(cut(text, words))
    assert cut(text, words).split() == text.split()[:words]


def test_cut_at_zero_keeps_everything() -> None:
    assert cut(TEXT, 0) == TEXT
