"""The lexical signal: BM25 of the query over the texts of a list, with weights that the first stage corrects.

BM25 needs to know how rare each word is in the collection. The texts of a list cannot show this, because they were
chosen by the query's words. So rarity is estimated from a table of document frequencies and from the list, and the
scores of the first stage correct the estimate: see `refitted`.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from rerank.checkpoints import bundled
from rerank.errors import CheckpointError
from rerank.models.vector_cache import TextCache
from rerank.retrieval.bm25 import K1, B
from rerank.retrieval.hybrid import z_scores
from rerank.types import Passage, Query
from rerank.util.word_table import WordTable
from rerank.util.words import READ_CHARS, stems

Floats: TypeAlias = npt.NDArray[np.float64]

#: Standard deviation of the relative error of the estimated weight of a word, δ in `refitted`.
WEIGHT_DEVIATION = 0.5
#: Smallest share of the variance of the first stage that counts as noise, so that the regression has a solution.
_LEAST_NOISE = 1e-3


def word_parts(query: Query, texts: Sequence[Sequence[str]]) -> Floats:
    """Returns (n, T) summands of BM25: what each of T distinct stems of a query adds to the score of each of n texts.

    BM25 is that of Robertson et al. (TREC-3, 1994), with lengths relative to the list. The idf of a stem is the mean of
    those in a table and in the list, because neither is right: the table does not know the collection, and the list has
    texts that were chosen by these words.

    Args:
        query: the query; a stem that occurs twice counts twice. Its `word_table`, with the document frequencies of the
            collection, replaces the bundled table.
        texts: the stems of n texts.
    """
    times, table = Counter(stems(query.text[:READ_CHARS])), query.word_table or bundled_word_table()
    if not times or not texts:
        return np.zeros((len(texts), len(times)))
    counts, column_of = np.zeros((len(texts), len(times))), {stem: column for column, stem in enumerate(times)}
    for row, text in enumerate(texts):
        for stem, count in Counter(filter(times.__contains__, text)).items():
            counts[row, column_of[stem]] = count
    lengths = np.array([[len(text)] for text in texts], dtype=np.float64)
    norms = K1 * (1 - B + B * lengths / max(float(lengths.mean()), 1.0))
    of_list = WordTable(len(texts), dict(zip(times, (counts > 0).sum(axis=0).tolist(), strict=True)))
    weights = [count * (table.idf(stem) + of_list.idf(stem)) / 2 for stem, count in times.items()]
    return counts / (counts + norms) * np.array(weights)


def refitted(parts: Floats, scores: npt.ArrayLike) -> Floats:
    """Returns (n,) BM25 scores, in which other scores of the texts correct the weight of each word.

    It is ridge regression (Hoerl and Kennard, Technometrics 12(1), 1970). With F and L the z-scores of the other scores
    and of the sum of the parts, r their correlation, and l_t the centred part of word t in L, so that L = Σ l_t, the
    model is F = r Σ (1 + δ_t) l_t + noise: δ_t has the deviation WEIGHT_DEVIATION, and the noise the variance 1 - r²,
    which the words do not explain. So a first stage of BM25 shows the idf of its own index, and one that hardly depends
    on the words changes little. The factors are 1 + δ_t, at least 0; all are 1 if r is not above 0.

    Args:
        parts: (n, T), see `word_parts`.
        scores: (n,) scores of the first stage, or of a model; equal scores correct nothing.

    Returns:
        (n,) scores; 0 for a text without a word of the query.
    """
    total = parts.sum(axis=1)
    target, lexical = z_scores(scores), z_scores(total)
    r = float(target @ lexical) / max(len(total), 1)
    if r <= 0:
        return total
    columns = (parts - parts.mean(axis=0)) * (r / total.std())
    changes = _ridge(columns, target - r * lexical, max(1 - r * r, _LEAST_NOISE) / WEIGHT_DEVIATION**2)
    return (parts * np.maximum(1 + changes, 0.0)).sum(axis=1)  # row by row, so that equal rows have equal scores


def _ridge(columns: Floats, target: Floats, penalty: float) -> Floats:
    """Returns (T,) coefficients of (n, T) columns, by the normal equations, or by their dual if T exceeds n."""
    rows, words = columns.shape
    if words <= rows:
        found = np.linalg.solve(columns.T @ columns + penalty * np.eye(words), columns.T @ target)
    else:
        found = columns.T @ np.linalg.solve(columns @ columns.T + penalty * np.eye(rows), target)
    return np.asarray(found, dtype=np.float64)


def known_words(texts: Iterable[Sequence[str]], table: WordTable) -> float:
    """Returns the share, 0 to 1, of the words of texts that a table has, or 1 without words. Numbers do not count.

    Args:
        texts: the stems of each text.
    """
    stems_of_all = [stem for text in texts for stem in text if not stem.isdigit()]
    return sum(map(table.frequencies.__contains__, stems_of_all)) / len(stems_of_all) if stems_of_all else 1.0


class StemCache(TextCache[tuple[str, ...]]):
    """Caches the stems of recently read texts, which share the strings of equal stems."""

    def stems_of(self, passage: Passage) -> tuple[str, ...]:
        """Returns the stems of a passage: its field `stems`, those in the cache, or new ones, which are then cached."""
        if (known := passage.stems) is not None or (known := self.get(passage.text)) is not None:
            return known
        found = stems(passage.text[:READ_CHARS])
        self.keep(passage.text, found, 8 * len(found))
        return found


def count_words(texts: Iterable[str], least: int) -> WordTable:
    """Returns the number of texts that have each stem. Equal texts count once.

    Args:
        least: smallest number of texts with a stem for which the table has it.
    """
    distinct = dict.fromkeys(texts)
    found = Counter(stem for text in distinct for stem in set(stems(text)))
    return WordTable(len(distinct), {stem: count for stem, count in found.items() if count >= least})


def write_word_table(table: WordTable, path: Path) -> None:
    """Writes a table: a line with the number of passages, then a line for each frequency with all its stems."""
    by_count: dict[int, list[str]] = {}
    for stem, count in table.frequencies.items():
        by_count.setdefault(count, []).append(stem)
    lines = [str(table.passages)]
    lines += [" ".join([str(count), *sorted(by_count[count])]) for count in sorted(by_count, reverse=True)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def read_word_table(path: Path) -> WordTable:
    """Reads a table of `write_word_table`. Raises: CheckpointError if the file is no such table."""
    content = path.read_bytes()
    try:
        passages, *rows = content.decode("utf-8").splitlines()
        frequencies = {stem: int(row.split()[0]) for row in rows for stem in row.split()[1:]}
        return WordTable(int(passages), frequencies, hashlib.sha256(content).hexdigest())
    except ValueError as error:
        problem = f"{path} is no table of word counts ({error}); write it again with scripts.reproduce.word_table"
        raise CheckpointError(problem) from error


@cache
def bundled_word_table() -> WordTable:
    """The bundled table, of English passages from the web."""
    return read_word_table(bundled.WORDS)
