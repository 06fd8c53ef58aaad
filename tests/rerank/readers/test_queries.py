"""Files of queries: BEIR's form and TREC's."""

from __future__ import annotations

from pathlib import Path

import pytest

from rerank.errors import CollectionError
from rerank.readers.queries import read_queries


def read(folder: Path, text: str) -> list[tuple[str, str]]:
    path = folder / "queries"
    path.write_text(text, encoding="utf-8")
    return [(query.query_id, query.text) for query in read_queries(path)]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"text": "why"}', r"has no _id \(or query_id, qid, id\); found text"),
        ("1 why", "has 1 columns; expected query_id, tab, text"),
        ("1\twhy\tso", "has 3 columns; expected query_id, tab, text"),
    ],
)
def test_bad_line_is_named(tmp_path: Path, line: str, problem: str) -> None:
    with pytest.raises(CollectionError, match=rf"queries:2 {problem}"):
        read(tmp_path, f"1\tfine\n{line}\n")


def test_query_with_two_texts_is_refused_with_both_lines(tmp_path: Path) -> None:
    assert read(tmp_path, '1\twhy\n{"_id": 1, "text": "why"}\n') == [("1", "why")]
    with pytest.raises(
        CollectionError, match=r"queries:3 has the query '1' of line 1, with another value; give it once"
    ):
        read(tmp_path, "1\twhy\n2\twhy\n1\thow\n")
