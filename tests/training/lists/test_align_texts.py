"""Texts of PE-Rank's alignment: from its conversations, and from training lists."""

from typing import Any

import pytest
from rerank_training.lists.align_texts import AlignTurns, read_align_texts

from rerank.errors import CollectionError
from tests.eval.data import write

PASSAGES = [{"doc_id": "a", "text": "one"}, {"doc_id": "b", "text": "two"}]
LIST = {"query_id": "1", "query": "q", "passages": PASSAGES, "relevance": [1, 0]}


def about(text: str, prompt: str = "Read <PLACEHOLDER> aloud.", answer: str = "It says: one") -> dict[str, Any]:
    turns = [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]
    return {"messages": turns, "extra_texts": [text]}


def test_texts_have_the_conversation_about_them_and_passages_none(tmp_path):
    texts = read_align_texts(write(tmp_path / "a.jsonl", LIST, about("one"), about("three")))
    turns = AlignTurns("Read ", " aloud.", "It says: one")
    assert list(texts.items()) == [("one", turns), ("two", None), ("three", turns)]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (about("one") | {"extra_texts": ["one", "two"]}, "2 extra_texts, 2 of them not blank; give one text"),
        (about(" "), "1 extra_texts, 0 of them not blank"),
        (about("one", prompt="Read it."), "0 <PLACEHOLDER> in the prompt"),
        (about("one", answer=" "), "an empty answer"),
        (about("one") | {"messages": []}, "turns of nobody; give one of the user, then one of the assistant"),
    ],
)
def test_conversation_about_anything_but_one_text_is_refused(tmp_path, row, reason):
    with pytest.raises(CollectionError, match=f"1 of 1 rows are invalid.*{reason}"):
        read_align_texts(write(tmp_path / "a.jsonl", row))
