"""Ids with white space as columns of TREC files, and back."""

from __future__ import annotations

import pytest

from rerank.readers.trec_ids import from_column, to_column


@pytest.mark.parametrize("text", ["HELP 1", "my\u00a0file.pdf", "a  b", "a\u3000b", "plain", "ü ö", "100%", "a%2Fb c"])
def test_column_becomes_the_id_again(text: str) -> None:
    assert len(to_column(text).split()) == 1
    assert from_column(to_column(text)) == text
