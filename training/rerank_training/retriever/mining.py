"""Mining of training lists for the retriever: what BM25 and the retriever itself find, graded by a teacher."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from rerank.collections import beir
from rerank.errors import CollectionError, ConfigError
from rerank.models.encoder import Encoder
from rerank.readers.qrels import Qrel
from rerank.retrieval.index import Index
from rerank.types import FirstStage, Passage, Query
from rerank_training.lists.sampling import Pool, make_pool
from rerank_training.lists.teachers import Teacher
from rerank_training.lists.training_list import TrainingList


def split_queries(folder: Path, held_out: str) -> tuple[list[Query], list[Query], list[Qrel]]:
    """Training queries, held-out queries, and the judgements of the held-out queries.

    Args:
        folder: in BEIR layout, or its file of queries, which is read; and qrels/{held_out}.tsv for held-out queries.
        held_out: name of the judgements whose queries are held out; empty: no query is held out.

    Raises:
        CollectionError: a file cannot be read.
        ConfigError: there are no training queries, or no held-out ones although some were requested.
    """
    queries = beir.queries(folder)
    qrels = beir.qrels(folder, held_out) if held_out else []
    judged = {qrel.query_id for qrel in qrels}
    training = [query for query in queries if query.query_id not in judged]
    measured = [query for query in queries if query.query_id in judged]
    if not training or (held_out and not measured):
        raise ConfigError(
            f"{folder}: of {len(queries)} queries, {len(training)} are left to train on and {len(measured)} have "
            f"judgements in qrels/{held_out or '…'}.tsv; both must be 1 or more: choose another --held-out, or "
            "leave it out"
        )
    return training, measured, qrels


def mined_lists(
    index: Index, encoder: Encoder, queries: Sequence[Query], depth: int, teacher: Teacher
) -> Iterator[TrainingList]:
    """One list per query with at least two passages.

    Args:
        encoder: the one of `index`.
        depth: number of passages that BM25 and dense retrieval each find per query.

    Raises:
        CollectionError: none of the queries finds two passages.
    """
    mined = 0
    for query in queries:
        pool, passages = _retrieved(index, encoder, query, depth)
        if len(passages) >= 2:
            mined += 1
            yield TrainingList(query, passages, teacher(pool, passages))
    if not mined:
        raise CollectionError(f"none of {len(queries)} queries finds two passages, so there is nothing to train on")


def _retrieved(index: Index, encoder: Encoder, query: Query, depth: int) -> tuple[Pool, tuple[Passage, ...]]:
    """A pool of BM25's results, as the fusion teacher needs it, and all passages, the retriever's first."""
    dense, bm25 = (index.search(stage, [query], depth)[0] for stage in (FirstStage.DENSE, FirstStage.BM25))
    doc_ids = list(dict.fromkeys(doc.doc_id for doc in [*dense, *bm25]))
    passages = {passage.doc_id: passage for passage in index.store.passages(doc_ids) if passage.text.strip()}
    candidates = [replace(passages[doc.doc_id], score=doc.score) for doc in bm25 if doc.doc_id in passages]
    return make_pool(encoder.with_vector(query), candidates, grades={}), tuple(passages.values())
