"""The embedded collection pydoc, its queries and its relevance judgements."""

import pytest

from rerank.collections import pydoc
from rerank.collections.pydoc import qrels, queries
from rerank.types import VALID_DOC_ID, Passage


@pytest.fixture(scope="module")
def passages() -> dict[str, Passage]:
    return {passage.doc_id: passage for passage in pydoc.passages()}


def test_thousands_of_passages_have_valid_ids_and_60_words_and_a_second_reading_is_equal(passages):
    assert len(passages) > 3_000
    assert list(pydoc.passages()) == list(passages.values())
    assert all(VALID_DOC_ID.fullmatch(doc_id) for doc_id in passages)
    assert all(len(p.text.partition("\n")[2].split()) <= 60 for p in passages.values())


def test_collection_has_60_queries_with_an_answer_each_and_200_relevant_passages(passages):
    assert len(queries()) >= 60
    assert sum(qrel.relevance > 0 for qrel in qrels()) >= 200
    assert {qrel.relevance for qrel in qrels()} == {0, 1, 2}
    assert {qrel.query_id for qrel in qrels() if qrel.relevance == 2} == {query.query_id for query in queries()}
    assert {qrel.doc_id for qrel in qrels()} <= passages.keys()
    assert len({(qrel.query_id, qrel.doc_id) for qrel in qrels()}) == len(qrels()), "a passage is judged twice"
