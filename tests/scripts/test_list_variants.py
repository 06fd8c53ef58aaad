"""Variants change what they say, and nothing else."""

from __future__ import annotations

from rerank.types import Passage, Query
from scripts.reproduce.list_variants import VARIANTS, backwards, in_cyrillic

QUERY = Query("How long does a Flea live", "7")
PASSAGES = [Passage(str(number), f"A flea, {number}", score=float(number), title="Fleas") for number in range(20)]


def test_each_variant_keeps_the_passages_in_their_order() -> None:
    for name, variant in VARIANTS.items():
        query, passages = variant.send(variant.ask(QUERY), PASSAGES)
        assert query.query_id == "7", name
        assert [passage.doc_id for passage in passages] == [passage.doc_id for passage in PASSAGES], name
    assert VARIANTS["as-it-is"].send(QUERY, PASSAGES) == (QUERY, PASSAGES)


def test_scores_are_left_out_or_shuffled_alike_in_every_run() -> None:
    _, without = VARIANTS["no-scores"].send(QUERY, PASSAGES)
    assert {passage.score for passage in without} == {None}
    shuffled, again = (VARIANTS["shuffled-scores"].send(QUERY, PASSAGES)[1] for _ in range(2))
    scores = [passage.score or 0.0 for passage in shuffled]
    assert sorted(scores) == [float(number) for number in range(20)] != scores
    assert list(shuffled) == list(again)


def test_words_are_written_in_other_letters_or_backwards() -> None:
    assert in_cyrillic("A flea, 7") == "А флеа, 7"
    assert backwards("A flea's life, 7") == "A aelf's efil, 7"
    query, (first, *_) = VARIANTS["backwards"].send(QUERY, PASSAGES)
    assert (query.text, first.text, first.title) == ("woH gnol seod a aelF evil", "A aelf, 0", "saelF")


def test_one_word_is_the_rarest_one() -> None:
    assert VARIANTS["one-word"].ask(QUERY).text == "flea"
    assert VARIANTS["one-word"].ask(Query("to be or not")).text == "to be or not"
