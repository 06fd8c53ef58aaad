"""Clicks become grades: relative to the best passage of the query, and to what was shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from rerank.errors import CollectionError
from rerank.readers.clicks import read_clicks


def grades(folder: Path, text: str) -> dict[tuple[str, str], int]:
    path = folder / "clicks.tsv"
    path.write_text(text, encoding="utf-8")
    return {(query, doc_id): grade for query, doc_id, grade in read_clicks(path)}


def test_grade_is_2_from_half_of_the_best_rate_and_1_for_any_click(tmp_path: Path) -> None:
    found = grades(tmp_path, "flea bites\ta b\t10\nflea bites\tb\t5\nflea bites\tc\t4\nflea bites\td\t0\ntides\tc\t1\n")
    assert found == {
        ("flea bites", "a b"): 2,
        ("flea bites", "b"): 2,
        ("flea bites", "c"): 1,
        ("flea bites", "d"): 0,
        ("tides", "c"): 2,
    }


def test_passage_that_was_shown_more_often_needs_more_clicks(tmp_path: Path) -> None:
    shown_once = "q\tlucky\t1\t1\nq\tgood\t50\t100\nq\tseen\t50\t1000\n"
    assert grades(tmp_path, shown_once) == {("q", "lucky"): 1, ("q", "good"): 2, ("q", "seen"): 1}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("q a 3\n", ":1 has 1 columns; expected query, doc_id, clicks"),
        ("q\ta\t3\nq\tb\t3\t5\n", ":2 has 4 columns"),
        ("q\ta\t3\t2\n", ":1 has 3 clicks and 2 impressions"),
        ("q\ta\t3\nq\tb\t-1\n", ":2 has the count '-1'; expected a whole number from 0 on"),
        ("q\ta\t3\nq\tb\t1.5\n", "'1.5'"),
        (f"q\ta\t{'9' * 5000}\n", "has the count '999"),
        ("\ta\t3\n", ":1 has the query '' and the doc_id 'a'; give both"),
    ],
)
def test_error_names_the_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(CollectionError) as caught:
        grades(tmp_path, text)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 300
