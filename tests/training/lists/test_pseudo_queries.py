"""Pseudo queries: sentences of a passage, and the passage without them."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rerank_training.lists.pseudo_queries import remove, sentence, truncate_words

TEXT = "A flea lives for a year. Deserts are dry! Is the moon, at 3.5 days, slow? It circles the earth in a month."


def test_every_sentence_of_four_words_or_more_is_sampled() -> None:
    assert {sentence(TEXT, Random(seed)) for seed in range(100)} == {
        "A flea lives for a year.",
        "Is the moon, at 3.5 days, slow?",
        "It circles the earth in a month.",
    }


@pytest.mark.parametrize("text", ["", " ", "Too short.", "word " * 41])
def test_text_without_a_fitting_sentence_gives_none(text: str) -> None:
    assert sentence(text, Random(0)) is None


@given(st.integers())
def test_only_the_sentence_is_removed(seed: int) -> None:
    part = sentence(TEXT, Random(seed))
    assert part is not None
    rest = remove(TEXT, part)
    assert rest is not None
    assert part not in rest
    assert sorted(f"{part} {rest}".split()) == sorted(TEXT.split())


def test_repetitions_are_removed_too() -> None:
    assert remove(f"On fleas {TEXT} On fleas", "On fleas") == TEXT


def test_nothing_is_removed_when_too_little_would_be_left() -> None:
    assert remove("one two three four. five six", "one two three four.") is None


@given(text=st.text(alphabet="ab \n"), words=st.integers(0, 5))
def test_truncation_keeps_the_first_words_unchanged(text: str, words: int) -> None:
    """All of them at 0."""
    assert text.startswith(truncate_words(text, words))
    assert truncate_words(text, words).split() == (text.split()[:words] if words else text.split())
