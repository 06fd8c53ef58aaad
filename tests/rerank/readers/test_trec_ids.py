"""Ids with white space as columns of TREC files, and back."""

from __future__ import annotations

import pytest

from rerank.readers.trec_ids import from_column, known_ids, to_column


@pytest.mark.parametrize("text", ["HELP 1", "my\u00a0file.pdf", "a  b", "a\u3000b", "plain", "ü ö", "100%", "a%2Fb c"])
def test_column_becomes_the_id_again(text: str) -> None:
    assert len(to_column(text).split()) == 1
    assert from_column(to_column(text)) == text


@pytest.mark.parametrize(("column", "text"), [("a%c2%a0b", "a\u00a0b"), ("a%2Fb%20c", "a%2Fb c"), ("50%", "50%")])
def test_only_white_space_is_decoded(column: str, text: str) -> None:
    assert from_column(column) == text


def test_known_id_stands_for_itself_and_for_its_other_form() -> None:
    known = ["https://x/a%20b", "HELP 1"]
    ids = ["https://x/a%20b", "https://x/a b", "HELP%201", "HELP 1", "other%20one"]
    assert list(known_ids(ids, known).values()) == [known[0], known[0], known[1], known[1], "other%20one"]
