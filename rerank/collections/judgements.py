"""Relevance judgements by the text of their query, with which a page colours passages and measures orders."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rerank.collections import NAMED, find_collection
from rerank.errors import ConfigError
from rerank.readers.qrels import Qrel, grades_by_query, read_qrels
from rerank.readers.queries import read_queries
from rerank.types import Query
from rerank.util.files import check_file, looked_for


@dataclass(frozen=True, slots=True)
class Judgements:
    """The judged queries of a test collection.

    Attributes:
        grades: text of a query, as `normalized` makes it → doc_id → grade; grades below 0 count as 0.
        queries: their texts as they were written, in the order of the collection.
    """

    grades: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    queries: tuple[str, ...] = ()

    def of_query(self, text: str) -> Mapping[str, int]:
        """The grades of the judged passages of a query by doc_id; empty if nobody judged the query."""
        return self.grades.get(normalized(text), {})


def normalized(text: str) -> str:
    """The text in lower case with single spaces: queries that differ only in these are the same query."""
    return " ".join(text.lower().split())


def read_judgements(qrels: str, queries: Path | None = None) -> Judgements:
    """The judgements that the settings `qrels` and `queries` name.

    Args:
        qrels: a named collection, such as "pydoc", a folder in BEIR layout (queries.jsonl, qrels/test.tsv), or a file,
            see `read_qrels`.
        queries: for a file: the texts of its queries, see `read_queries`.

    Raises:
        ConfigError: `queries` is missing for a file, or given for another form; or a path leads nowhere.
        CollectionError: a file cannot be read; the message names the line.
    """
    path = Path(qrels)
    if qrels not in NAMED and not os.path.exists(path):
        names = " or ".join(NAMED)
        raise ConfigError(f"--qrels {qrels}: there is no such file or folder{looked_for(path)}; or give {names}")
    if (queries is not None) != path.is_file():
        problem = "is a file, which needs the texts of its queries; give them with --queries FILE"
        raise ConfigError(f"--qrels {qrels} {problem if queries is None else 'is not a file, and needs no --queries'}")
    if queries is not None:
        check_file(queries)
        return _joined(read_queries(queries), read_qrels(path))
    collection = find_collection(qrels)
    return _joined(collection.queries(), collection.qrels("test"))


def _joined(queries: Iterable[Query], qrels: Iterable[Qrel]) -> Judgements:
    by_id = grades_by_query(qrels)
    judged = [query for query in queries if query.query_id in by_id]
    grades = {normalized(query.text): by_id[query.query_id] for query in judged}
    return Judgements(grades, tuple(query.text for query in judged))
