"""BM25 retrieval with Lucene, through Pyserini."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from rerank.errors import IndexMismatch
from rerank.retrieval.jvm import pyserini_module
from rerank.types import Passage, Query, ScoredDoc

#: Anserini's defaults for MS MARCO passages and BEIR.
K1, B = 0.9, 0.4
#: Limit on the distinct terms of a query; Lucene's default of 1,024 is too low for long queries.
_MAX_QUERY_TERMS = 65_536


class BM25Retriever:
    """Searches a Lucene index that `BM25Writer` wrote.

    Raises:
        IndexMismatch: the folder holds no index that Lucene can read.
    """

    def __init__(self, folder: Path) -> None:
        lucene = pyserini_module("pyserini.search.lucene")
        try:
            self._searcher = lucene.LuceneSearcher(str(folder))
        except Exception as error:  # the JavaException of jnius can be imported only while the JVM runs
            raise IndexMismatch(
                f"{folder} is no Lucene index that this version of Pyserini can read: {error}"
            ) from error
        self._searcher.set_bm25(K1, B)
        _allow_long_queries()

    def search(self, queries: Sequence[Query], depth: int) -> list[list[ScoredDoc]]:
        return [
            [ScoredDoc(hit.docid, float(hit.score)) for hit in self._searcher.search(query.text, k=depth)]
            for query in queries
        ]


class BM25Writer:
    """Writes a Lucene index; the index is committed when the `with` block ends."""

    def __init__(self, folder: Path) -> None:
        self._indexer: Any = pyserini_module("pyserini.index.lucene").LuceneIndexer(str(folder), threads=2)
        self._batch: list[str] = []

    def __enter__(self) -> BM25Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._flush()
        self._indexer.close()

    def add(self, passage: Passage) -> None:
        self._batch.append(json.dumps({"id": passage.doc_id, "contents": passage.text}))
        if len(self._batch) == 1000:
            self._flush()

    def _flush(self) -> None:
        if self._batch:
            self._indexer.add_batch_raw(self._batch)
            self._batch = []


def _allow_long_queries() -> None:
    autoclass = pyserini_module("pyserini.pyclass").autoclass
    autoclass("org.apache.lucene.search.IndexSearcher").setMaxClauseCount(_MAX_QUERY_TERMS)
