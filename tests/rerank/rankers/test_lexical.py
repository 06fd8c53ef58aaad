"""The lexical signal: BM25 by its formula, over lists with and without words, and the table of document frequencies."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from rerank.checkpoints import bundled
from rerank.errors import CheckpointError
from rerank.rankers.lexical import (
    READ_CHARS,
    StemCache,
    WordTable,
    bm25,
    bundled_word_table,
    count_words,
    known_words,
    read_word_table,
    write_word_table,
)
from rerank.types import Passage

TABLE = WordTable(100, {"flea": 9, "year": 40})


def idf(frequency: float) -> float:
    return math.log(1 + (100 - frequency + 0.5) / (frequency + 0.5))


def test_scores_are_those_of_the_formula() -> None:
    """k1 = .9, b = .4; the texts have 4 and 2 stems, 3 in the mean. A stem that the table lacks has df = 9 / 2."""
    texts = [("flea", "year", "flea", "flea"), ("year", "moon")]
    long, short = (0.9 * (0.6 + 0.4 * n / 3) for n in (4, 2))
    expected = [idf(9) * 3 / (3 + long) + 2 * idf(40) / (1 + long), 2 * idf(40) / (1 + short) + idf(4.5) / (1 + short)]
    assert bm25(("flea", "year", "year", "moon"), texts, TABLE) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("query", "texts"),
    [((), [("flea",), ()]), (("flea",), [(), ()]), (("flea",), []), (("moon",), [("flea",), ("year", "year")])],
)
def test_texts_without_a_word_of_the_query_score_0(query: tuple[str, ...], texts: list[tuple[str, ...]]) -> None:
    assert bm25(query, texts, TABLE).tolist() == [0.0] * len(texts)


def test_empty_table_weights_all_words_alike() -> None:
    scores = bm25(("a", "b"), [("a", "c"), ("b", "c"), ("c", "c")], WordTable(0, {}))
    assert scores[0] == scores[1] > scores[2] == 0


def test_known_words_are_those_of_the_table_and_numbers_are_none() -> None:
    assert known_words([("flea", "moon", "moon", "20"), ("year",)], TABLE) == 0.5
    assert known_words([], TABLE) == known_words([(), ("20", "1999")], TABLE) == 1.0
    assert known_words([("moon",)], TABLE) == 0.0


def test_counts_are_of_distinct_passages_and_rare_stems_are_left_out() -> None:
    table = count_words(["Fleas live.", "A flea's life", "Fleas live.", "life is life"], least=2)
    assert (table.passages, table.frequencies) == (3, {"flea": 2, "life": 2})


def test_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    for table in (TABLE, WordTable(0, {}), WordTable(3, {"été": 3, "a": 1, "b": 1})):
        write_word_table(table, path)
        found = read_word_table(path)
        assert (found.passages, found.frequencies) == (table.passages, table.frequencies)
        assert len(found.sha256) == 64


@pytest.mark.parametrize("content", [b"", b"many\n", b"9\nflea 3\n", b"\xff\xfe"])
def test_file_that_is_no_table_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "words.txt"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"words\.txt is no table of word counts .*; write it again"):
        read_word_table(path)


def test_bundled_table_is_small_and_knows_how_rare_words_are() -> None:
    assert bundled.WORDS.stat().st_size <= 64 * 1024
    table = bundled_word_table()
    assert len(table.frequencies) > 2000
    assert table.idf("you") < table.idf("year") < table.idf("moon") < table.idf("notawordatall")


def test_stems_of_a_text_are_kept_and_no_more_of_it_is_read_than_the_bound() -> None:
    cache = StemCache(100_000)
    passage = Passage("a", "flea " * READ_CHARS)
    assert cache.with_cached_stems(passage) is passage
    read = cache.with_stems(passage)
    assert read.stems is not None
    assert len(read.stems) == READ_CHARS // 5
    assert cache.with_cached_stems(Passage("b", passage.text)).stems is read.stems
    assert cache.with_stems(read) is read
    assert StemCache(0).with_stems(Passage("c", "")).stems == ()


def test_scores_are_finite_for_any_lengths() -> None:
    texts = [("flea",) * n for n in (0, 1, 10_000)]
    assert np.isfinite(bm25(("flea",), texts, TABLE)).all()
