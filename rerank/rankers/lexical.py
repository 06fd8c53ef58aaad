"""The lexical signal: BM25 of the query over the texts of a list, which needs no index.

How rare a word is cannot be told from a list, whose texts all have the query's words. It comes from a table of document
frequencies, which `scripts.reproduce.word_table` counts in other passages.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from statistics import fmean

import numpy as np
import numpy.typing as npt

from rerank.checkpoints import bundled
from rerank.errors import CheckpointError
from rerank.models.vector_cache import TextCache
from rerank.retrieval.bm25 import K1, B
from rerank.types import Passage, Query
from rerank.util.words import stems

#: Characters of a query or a text whose words are read: what both encoders read, and some more.
READ_CHARS = 4_000


@dataclass(frozen=True, slots=True)
class WordTable:
    """Document frequencies of stems in passages that have nothing to do with a request.

    Attributes:
        passages: their number.
        frequencies: stem → the number of passages that have it; rare stems are left out.
        sha256: of the file.
        rare: the frequency of a stem that is left out: half of the lowest of the others, as 0 would make a name
            count twice as much as the words around it.
    """

    passages: int
    frequencies: Mapping[str, int]
    sha256: str = ""
    rare: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rare", min(self.frequencies.values(), default=0) / 2)

    def idf(self, stem: str) -> float:
        """log(1 + (N - df + .5) / (df + .5)), as Lucene computes it, for a stem of df passages among N."""
        frequency = self.frequencies.get(stem, self.rare)
        return math.log1p((self.passages - frequency + 0.5) / (frequency + 0.5))


def bm25(query: Sequence[str], texts: Sequence[Sequence[str]], table: WordTable) -> npt.NDArray[np.float64]:
    """BM25 (Robertson et al., TREC-3, 1994) of a query with each text of a list, with the lengths of this list.

    Args:
        query: its stems; a stem that occurs twice counts twice.
        texts: the stems of n texts.

    Returns:
        (n,) scores; 0 for a text without a word of the query.
    """
    weights = {stem: times * table.idf(stem) for stem, times in Counter(query).items()}
    mean_length = max(fmean(map(len, texts)), 1.0) if texts else 1.0
    return np.array([_score(weights, text, K1 * (1 - B + B * len(text) / mean_length)) for text in texts])


def _score(weights: Mapping[str, float], text: Sequence[str], norm: float) -> float:
    counts = Counter(filter(weights.__contains__, text))
    return math.fsum(weights[stem] * count / (count + norm) for stem, count in counts.items())


def lexical_scores(query: Query, texts: Sequence[Sequence[str]]) -> npt.NDArray[np.float64]:
    """(n,) BM25 of a query with the stems of n texts, by the bundled table."""
    return bm25(stems(query.text[:READ_CHARS]), texts, bundled_word_table())


def known_words(texts: Iterable[Sequence[str]], table: WordTable) -> float:
    """The share, 0 to 1, of the words of texts that a table has; numbers do not count. 1 if there are none.

    Args:
        texts: the stems of each text.
    """
    stems_of_all = [stem for text in texts for stem in text if not stem.isdigit()]
    return sum(map(table.frequencies.__contains__, stems_of_all)) / len(stems_of_all) if stems_of_all else 1.0


class StemCache(TextCache[tuple[str, ...]]):
    """Keeps the stems of the texts that were read last; the stems themselves are shared by all texts."""

    def with_cached_stems(self, passage: Passage) -> Passage:
        """Returns the passage with its cached stems, if there are some."""
        if passage.stems is not None or (found := self.get(passage.text)) is None:
            return passage
        return replace(passage, stems=found)

    def with_stems(self, passage: Passage) -> Passage:
        """Gives a passage the stems of its text: those in the cache, or else new ones, which are kept."""
        passage = self.with_cached_stems(passage)
        if passage.stems is not None:
            return passage
        found = stems(passage.text[:READ_CHARS])
        self.keep(passage.text, found, 8 * len(found))
        return replace(passage, stems=found)


def count_words(texts: Iterable[str], least: int) -> WordTable:
    """Counts the passages that have each stem. Equal texts count once.

    Args:
        least: stems of fewer passages are left out.
    """
    distinct = dict.fromkeys(texts)
    found = Counter(stem for text in distinct for stem in set(stems(text)))
    return WordTable(len(distinct), {stem: count for stem, count in found.items() if count >= least})


def write_word_table(table: WordTable, path: Path) -> None:
    """Writes a table: a line with the number of passages, then for each frequency a line of it and its stems."""
    by_count: dict[int, list[str]] = {}
    for stem, count in table.frequencies.items():
        by_count.setdefault(count, []).append(stem)
    lines = [str(table.passages)]
    lines += [" ".join([str(count), *sorted(by_count[count])]) for count in sorted(by_count, reverse=True)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def read_word_table(path: Path) -> WordTable:
    """Reads a table of `write_word_table`. Raises: CheckpointError if it is none."""
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
