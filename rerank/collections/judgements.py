"""Relevance judgements by query text, for the inspector."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rerank.collections import is_collection, no_collection, open_collection
from rerank.errors import ConfigError
from rerank.readers.qrels import grades_by_query
from rerank.util.combining import nfc


@dataclass(frozen=True, slots=True)
class Judgements:
    """The judged queries of a test collection.

    Attributes:
        grades: `normalized` text of a query → doc_id → grade; grades below 0 count as 0.
        queries: the original texts of the queries, in the order of the collection.
    """

    grades: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    queries: tuple[str, ...] = ()

    def grades_of(self, query: str) -> Mapping[str, int]:
        """doc_id → grade, of the judged passages of a query; empty for a query without judgements."""
        return self.grades.get(normalized(query), {})


def normalized(text: str) -> str:
    """The text in NFC, lower case and with single spaces: queries that differ only in these are the same query."""
    return " ".join(nfc(text).lower().split())


def read_judgements(qrels: str) -> Judgements:
    """The judgements of a named collection, such as "pydoc", or of a folder in BEIR layout (qrels/test.tsv).

    Raises:
        ConfigError: there is no such folder.
        CollectionError: a file cannot be read; the message names the line.
    """
    if not is_collection(qrels):
        raise ConfigError(f"--qrels {qrels}: {no_collection(Path(qrels))}")
    collection = open_collection(qrels)
    by_id = grades_by_query(collection.qrels("test"))
    judged = [query for query in collection.queries() if query.query_id in by_id]
    grades = {normalized(query.text): by_id[query.query_id] for query in judged}
    return Judgements(grades, tuple(query.text for query in judged))
