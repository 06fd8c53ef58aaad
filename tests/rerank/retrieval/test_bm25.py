"""BM25 retrieval with Lucene."""

from __future__ import annotations

from pathlib import Path

import pytest

from rerank.errors import IndexMismatch
from rerank.retrieval.bm25 import BM25Retriever, BM25Writer
from rerank.types import Passage, Query

TEXTS = {"a": "the flea jumps", "b": "the flea and the flea circus", "c": "a violin", "d": ""}


@pytest.fixture(scope="module")
def retriever(tmp_path_factory: pytest.TempPathFactory) -> BM25Retriever:
    folder = tmp_path_factory.mktemp("bm25")
    with BM25Writer(folder) as writer:
        for doc_id, text in TEXTS.items():
            writer.add(Passage(doc_id, text))
    return BM25Retriever(folder)


def search(retriever: BM25Retriever, text: str, depth: int = 10) -> list[str]:
    return [hit.doc_id for hit in retriever.search([Query(text)], depth)[0]]


def test_passage_with_more_query_terms_ranks_higher(retriever: BM25Retriever) -> None:
    best, second = retriever.search([Query("flea circus")], 10)[0]
    assert (best.doc_id, second.doc_id) == ("b", "a")
    assert best.score > second.score > 0


def test_query_terms_are_stemmed(retriever: BM25Retriever) -> None:
    assert set(search(retriever, "fleas jumping")) == {"a", "b"}


def test_depth_limits_the_results(retriever: BM25Retriever) -> None:
    assert search(retriever, "flea circus", depth=1) == ["b"]


def test_results_have_the_order_of_the_queries(retriever: BM25Retriever) -> None:
    found = retriever.search([Query("violin"), Query("nothing-of-this"), Query("circus")], 10)
    assert [[hit.doc_id for hit in hits] for hits in found] == [["c"], [], ["b"]]
    assert retriever.search([], 10) == []


@pytest.mark.parametrize("text", ["the of and", "?!", "AND OR NOT", 'flea" AND (', "field:value^2 ~ [a TO b]", "🎻"])
def test_query_syntax_of_lucene_is_plain_text(retriever: BM25Retriever, text: str) -> None:
    assert set(search(retriever, text)) <= {"a", "b", "c"}


def test_query_may_have_more_terms_than_the_default_limit_of_lucene(retriever: BM25Retriever) -> None:
    assert search(retriever, " ".join(f"term{n}" for n in range(5_000)) + " violin") == ["c"]


def test_folder_without_an_index_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IndexMismatch, match="no Lucene index"):
        BM25Retriever(tmp_path)
