"""Files of queries: BEIR's form and TREC's."""

from pathlib import Path

import pytest

from rerank.errors import CollectionError
from rerank.readers.queries import read_queries


def read(folder: Path, text: str) -> list[tuple[str, str]]:
    path = folder / "queries"
    path.write_text(text, encoding="utf-8")
    return [(query.query_id, query.text) for query in read_queries(path)]


def test_query_with_two_texts_is_refused_with_both_lines(tmp_path):
    assert read(tmp_path, '1\twhy\n{"_id": 1, "text": "why"}\n') == [("1", "why")]
    message = r"queries:3 has the query '1' of line 1, with another value; give it once"
    with pytest.raises(CollectionError, match=message):
        read(tmp_path, "1\twhy\n2\twhy\n1\thow\n")


@pytest.mark.parametrize("header", ["query_id\ttext", "qid\tquery", "ID\tTitle", "query-id\tquery-text"])
def test_header_is_no_query_and_words_like_it_are(tmp_path, header):
    (path := tmp_path / "queries.tsv").write_text(f"{header}\nq1\tfleas\nid\tquery\n")
    assert [(query.query_id, query.text) for query in read_queries(path)] == [("q1", "fleas"), ("id", "query")]
    path.write_text("id\thow do fleas live\n")
    assert [query.query_id for query in read_queries(path)] == ["id"]
