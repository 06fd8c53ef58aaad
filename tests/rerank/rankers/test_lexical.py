"""The lexical signal: BM25 by its formula, over lists with and without words, and the table of document frequencies."""

import math

import numpy as np
import pytest

from rerank.checkpoints import bundled
from rerank.errors import CheckpointError
from rerank.rankers import lexical
from rerank.rankers.lexical import (
    Floats,
    StemCache,
    bundled_word_table,
    count_words,
    known_words,
    read_word_table,
    refitted,
    word_parts,
    write_word_table,
)
from rerank.types import Passage, Query
from rerank.util.word_table import WordTable
from rerank.util.words import READ_CHARS, stems

TABLE = WordTable(100, {"flea": 9, "year": 40})


def idf(frequency: float, passages: int = 100) -> float:
    return math.log(1 + (passages - frequency + 0.5) / (frequency + 0.5))


def test_parts_are_those_of_the_formula():
    """k1 = .9, b = .4; the texts have 4 and 2 stems, 3 in the mean. A stem that the table lacks has df = 9 / 2.

    The idf is the mean of those in the table and in the list of two texts.
    """
    texts = [("flea", "year", "flea", "flea"), ("year", "moon")]
    long, short = (0.9 * (0.6 + 0.4 * n / 3) for n in (4, 2))
    flea, year, moon = ((idf(df) + idf(of_list, 2)) / 2 for df, of_list in ((9, 1), (40, 2), (4.5, 1)))
    expected = [[flea * 3 / (3 + long), 2 * year / (1 + long), 0.0], [0.0, 2 * year / (1 + short), moon / (1 + short)]]
    found = word_parts(Query("flea year years moon", word_table=TABLE), texts)
    assert found.tolist() == [pytest.approx(row) for row in expected]


@pytest.mark.parametrize(
    ("query", "texts"),
    [
        ("", [("flea",), ()]),
        ("flea", [(), ()]),
        ("flea", []),
        ("moon", [("flea",), ("year", "year")]),
        ("the of", [("flea",)]),
    ],
)
def test_texts_without_a_word_of_the_query_score_0(query, texts):
    assert refitted(word_parts(Query(query), texts), range(len(texts))).tolist() == [0.0] * len(texts)


def test_empty_table_weights_words_by_the_list():
    query = Query("flea moon", word_table=WordTable(0, {}))
    scores = word_parts(query, [("flea", "c"), ("moon", "c"), ("c", "c")]).sum(axis=1)
    assert scores[0] == scores[1] > scores[2] == 0


def parts_of(n: int, words: int, seed: int) -> Floats:
    """Random parts of words: some texts lack some of them."""
    draw = np.random.default_rng(seed)
    return draw.uniform(0.5, 3, size=words) * draw.uniform(0.3, 1, size=(n, words)) * (draw.random((n, words)) < 0.6)


def correlation(one: Floats, other: Floats) -> float:
    return float(np.corrcoef(one, other)[0, 1])


def slow_refit(parts: Floats, first_stage: Floats) -> Floats:
    """Ridge regression as least squares, with one more row for each word: the root of the penalty times its change."""
    target = (first_stage - first_stage.mean()) / first_stage.std()
    centred = parts - parts.mean(axis=0)
    prior = centred.sum(axis=1)
    (slope,) = np.linalg.lstsq(prior[:, None], target)[0]
    if slope <= 0:
        return parts.sum(axis=1)
    noise = max(1 - slope**2 * prior.var(), 1e-3)
    words = parts.shape[1]
    rows = np.vstack([slope * centred, math.sqrt(noise) / 0.5 * np.eye(words)])
    changes = np.linalg.lstsq(rows, np.concatenate([target - slope * prior, np.zeros(words)]))[0]
    return parts @ np.maximum(1 + changes, 0.0)


@pytest.mark.parametrize(("n", "words"), [(2, 1), (2, 5), (7, 3), (20, 40), (100, 8)])
def test_refit_is_least_squares_with_a_penalty(n, words):
    for seed in range(20):
        parts, draw = parts_of(n, words, seed), np.random.default_rng(seed + 100)
        first_stage = parts @ draw.uniform(0, 3, size=words) + draw.uniform(0, 3) * draw.normal(size=n)
        assert refitted(parts, first_stage) == pytest.approx(slow_refit(parts, first_stage), rel=1e-6, abs=1e-9)


def test_first_stage_of_bm25_with_another_idf_is_followed():
    """Each word counts up to three times as much or as little as the guess says."""
    gains = []
    for seed in range(40):
        parts, draw = parts_of(100, 5, seed), np.random.default_rng(seed + 100)
        first_stage = parts @ np.exp(draw.uniform(-math.log(3), math.log(3), size=5))
        found = correlation(refitted(parts, first_stage), first_stage)
        assert found > 0.97
        gains.append(found - correlation(parts.sum(axis=1), first_stage))
    assert min(gains) >= 0
    assert np.mean(gains) > 0.05


def test_first_stage_of_noise_changes_nothing():
    """But by chance: 100 numbers have a correlation of .1 with others."""
    kept = []
    for seed in range(40):
        parts, noise = parts_of(100, 5, seed), np.random.default_rng(seed + 100).normal(size=100)
        kept.append(correlation(refitted(parts, noise), parts.sum(axis=1)))
    assert min(kept) > 0.95
    assert np.mean(kept) > 0.99


@pytest.mark.parametrize(
    ("parts", "first_stage"),
    [
        ([[2.0], [1.0], [0.0]], [7.0, 1.0, 2.0]),  # one word
        ([[2.0, 1.0], [0.0, 3.0], [1.0, 0.0]], [5.0, 5.0, 5.0]),  # no scores
        ([[2.0, 1.0], [0.0, 3.0], [1.0, 0.0]], [1.0, 2.0, 9.0]),  # against the words
        ([[2.0, 1.0]], [3.0]),  # one passage
        ([[2.0, 0.1], [2.0, 0.1], [2.0, 0.1]], [3.0, 2.0, 1.0]),  # equal texts
        ([[], []], [2.0, 1.0]),  # no words
        (np.zeros((0, 2)), []),
    ],
)
def test_nothing_is_refitted_where_the_first_stage_tells_nothing_of_words(parts, first_stage):
    found = refitted(np.array(parts), first_stage)
    assert found.tolist() == pytest.approx(np.array(parts).sum(axis=1).tolist())


def test_equal_texts_keep_equal_scores():
    parts = np.repeat(parts_of(25, 7, 3), 4, axis=0)
    found = refitted(parts, np.random.default_rng(0).normal(size=100) + 3 * parts.sum(axis=1))
    assert all(len({*four}) == 1 for four in found.reshape(25, 4).tolist())


def test_no_word_counts_against_a_text():
    """The first stage puts the texts with the last word last, and the word counts nothing."""
    parts = np.vstack([parts_of(100, 4, 1), [0, 0, 0, 1], [0, 0, 0, 3]])
    assert refitted(parts, parts @ np.array([8.0, 8.0, 8.0, -4.0]))[-2:].tolist() == [0, 0]


def test_deviation_of_zero_refits_nothing(monkeypatch):
    parts = parts_of(100, 5, 2)
    first_stage = parts @ np.array([3.0, 0.3, 1.0, 1.0, 2.0])
    assert correlation(refitted(parts, first_stage), parts.sum(axis=1)) < 0.95
    monkeypatch.setattr(lexical, "WEIGHT_DEVIATION", 1e-9)
    assert refitted(parts, first_stage) == pytest.approx(parts.sum(axis=1))


def test_document_frequencies_of_the_collection_take_the_place_of_the_table():
    texts = [stems("Fleas."), stems("Years and years."), stems("The moon.")]
    index = WordTable(1000, {"flea": 900, "year": 1, "moon": 500})
    by_table, by_index = (
        word_parts(Query("flea year moon", word_table=table), texts).sum(axis=1) for table in (None, index)
    )
    assert np.argsort(-by_table).tolist() == [0, 2, 1]
    assert np.argsort(-by_index).tolist() == [1, 2, 0]


def test_known_words_are_those_of_the_table_and_numbers_are_none():
    assert known_words([("flea", "moon", "moon", "20"), ("year",)], TABLE) == 0.5
    assert known_words([], TABLE) == known_words([(), ("20", "1999")], TABLE) == 1.0
    assert known_words([("moon",)], TABLE) == 0.0


def test_counts_are_of_distinct_passages_and_rare_stems_are_left_out():
    table = count_words(["Fleas live.", "A flea's life", "Fleas live.", "life is life"], least=2)
    assert (table.passages, table.frequencies) == (3, {"flea": 2, "life": 2})


def test_table_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "words.txt"
    for table in (TABLE, WordTable(0, {}), WordTable(3, {"été": 3, "a": 1, "b": 1})):
        write_word_table(table, path)
        found = read_word_table(path)
        assert (found.passages, found.frequencies) == (table.passages, table.frequencies)
        assert len(found.sha256) == 64


@pytest.mark.parametrize("content", [b"", b"many\n", b"9\nflea 3\n", b"\xff\xfe"])
def test_file_that_is_no_table_is_refused(tmp_path, content):
    path = tmp_path / "words.txt"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"words\.txt is no table of word counts .*; write it again"):
        read_word_table(path)


def test_bundled_table_is_small_and_knows_how_rare_words_are():
    assert bundled.WORDS.stat().st_size <= 64 * 1024
    table = bundled_word_table()
    assert len(table.frequencies) > 2000
    assert table.idf("you") < table.idf("year") < table.idf("moon") < table.idf("notawordatall")


def test_stems_of_a_text_are_kept_and_no_more_of_it_is_read_than_the_bound():
    cache = StemCache(100_000)
    passage = Passage("a", "flea " * READ_CHARS)
    read = cache.stems_of(passage)
    assert len(read) == READ_CHARS // 5
    assert cache.stems_of(Passage("b", passage.text)) is read
    assert cache.stems_of(Passage("b", passage.text, stems=("own",))) == ("own",)
    assert StemCache(0).stems_of(Passage("c", "")) == ()


def test_scores_are_finite_for_any_lengths():
    texts = [("flea",) * n for n in (0, 1, 10_000)]
    assert np.isfinite(refitted(word_parts(Query("flea"), texts), [1.0, 2.0, 1e300])).all()


def test_query_of_many_words_is_scored_at_once():
    """As many as are read, of each of 1,000 texts."""
    words = tuple(f"{number}" for number in range(READ_CHARS // 5))
    texts = [words[place % 700 :] for place in range(1000)]
    found = refitted(word_parts(Query(" ".join(words)), texts), range(1000, 0, -1))
    assert np.isfinite(found).all()
