"""Training and held-out queries, and the lists mined from an index."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from rerank_training.lists.sampling import Pool
from rerank_training.retriever.distillation import mined_lists, split_queries

from rerank.errors import CollectionError, ConfigError
from rerank.models.encoder import Encoder
from rerank.retrieval.index import Index
from rerank.types import FirstStage, Passage, Query


@pytest.fixture
def queries(tmp_path: Path) -> Path:
    queries = [{"_id": str(number), "text": f"query {number}"} for number in range(4)]
    (tmp_path / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in queries), encoding="utf-8")
    (tmp_path / "qrels").mkdir()
    for split, judged in {"odd": "13", "all": "0123", "none": "9"}.items():
        rows = ["query-id\tcorpus-id\tscore", *(f"{query_id}\tflea\t1" for query_id in judged)]
        (tmp_path / "qrels" / f"{split}.tsv").write_text("\n".join(rows), encoding="utf-8")
    return tmp_path


def by_length(pool: Pool, passages: Sequence[Passage]) -> tuple[float, ...]:
    return tuple(float(len(passage.text)) for passage in passages)


@pytest.mark.parametrize(
    ("held_out", "counts"), [("all", "0 are left to train on and 4"), ("none", "4 are left to train on and 0 have")]
)
def test_split_without_training_or_held_out_queries_is_refused(queries: Path, held_out: str, counts: str) -> None:
    with pytest.raises(ConfigError, match=counts):
        split_queries(queries, held_out)


def test_list_has_the_passages_of_both_first_stages_once(index: Index, encoder: Encoder) -> None:
    query, depth = Query("library that searches with BM25", "1"), 3
    (mined,) = mined_lists(index, encoder, [query], depth, by_length)
    found = [index.search(stage, [query], depth)[0] for stage in (FirstStage.DENSE, FirstStage.BM25)]
    expected = list(dict.fromkeys(doc.doc_id for docs in found for doc in docs))
    assert [passage.doc_id for passage in mined.passages] == expected
    assert mined.relevance == by_length(None, mined.passages)  # type: ignore[arg-type]


def test_queries_that_find_nothing_are_named(index: Index, encoder: Encoder) -> None:
    with pytest.raises(CollectionError, match="none of 1 queries finds two passages"):
        list(mined_lists(index, encoder, [Query("moon", "1")], 1, by_length))
