"""Pseudo queries: sentences of a passage, and the passage without them."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st
from rerank_training.lists.pseudo_queries import remove, sentence

TEXT = "A flea lives for a year. Deserts are dry! Is the moon, at 3.5 days, slow? It circles the earth in a month."


def test_every_sentence_of_four_words_or_more_is_sampled() -> None:
    assert {sentence(TEXT, Random(seed)) for seed in range(100)} == {
        "A flea lives for a year.",
        "Is the moon, at 3.5 days, slow?",
        "It circles the earth in a month.",
    }


@given(st.integers())
def test_only_the_sentence_is_removed(seed: int) -> None:
    part = sentence(TEXT, Random(seed))
    assert part is not None
    rest = remove(TEXT, part)
    assert rest is not None
    assert part not in rest
    assert sorted(f"{part} {rest}".split()) == sorted(TEXT.split())
