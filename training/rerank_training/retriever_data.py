"""What the retriever learns from: all that BM25 and the retriever itself find for a query, graded by a teacher."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rerank.collections.requests import Qrel, read_beir_qrels, read_beir_queries
from rerank.config import load_config
from rerank.errors import CollectionError, ConfigError
from rerank.models.encoder import Encoder
from rerank.reranker import Reranker
from rerank.retrieval.dense import with_vector
from rerank.retrieval.index import Index
from rerank.types import Candidate, FirstStage, Passage, Query
from rerank_training.data import TrainingList
from rerank_training.sampling import Pool, make_pool
from rerank_training.teachers import ByReranker, Teacher, by_fusion


def split_queries(folder: Path, held_out: str) -> tuple[list[Query], list[Query], list[Qrel]]:
    """The queries to train on, those to measure on, and the judgements of the latter.

    Args:
        folder: in BEIR layout; its queries.jsonl and, for held-out queries, qrels/{held_out}.tsv are read.
        held_out: queries that are judged there are measured, all others trained on; empty: nothing is measured.

    Raises:
        CollectionError: a file cannot be read.
        ConfigError: no query is left on one of the two sides.
    """
    queries = read_beir_queries(folder)
    qrels = read_beir_qrels(folder, held_out) if held_out else []
    judged = {qrel.query_id for qrel in qrels}
    train = [query for query in queries if query.query_id not in judged]
    measured = [query for query in queries if query.query_id in judged]
    if not train or (held_out and not measured):
        raise ConfigError(
            f"{folder}: {len(train)} queries to train on, {len(measured)} that qrels/{held_out or '…'}.tsv judges, of "
            f"{len(queries)}; both need one or more: name another --held_out, or none"
        )
    return train, measured, qrels


@contextmanager
def opened_teacher(name: str, config: Path | None, model: str) -> Iterator[Teacher]:
    """`fusion`, or one of our rerankers, which is open as long as the block runs.

    Args:
        config: settings of its models; None: the defaults.
        model: one of them; empty: the first.
    """
    if name == "fusion":
        yield by_fusion
        return
    with Reranker(load_config(config)) as reranker:
        yield ByReranker(reranker, model)


class Lessons:
    """Makes lists of what two indexes of one collection find.

    Args:
        base: BM25 comes from here, and the vectors by which the fusion judges: they stay as they were, so that the
            teacher does not follow its student.
        encoder: that of `base`.
        current: the retriever as it is now.
        depth: how many passages each of BM25 and `current` finds.
    """

    def __init__(self, base: Index, encoder: Encoder, current: Index, depth: int) -> None:
        self._base = base
        self._encoder = encoder
        self._current = current
        self._depth = depth

    def lists(self, queries: Sequence[Query], teacher: Teacher) -> Iterator[TrainingList]:
        """One list a query, for which something is found.

        Raises:
            CollectionError: there is no such query.
        """
        made = 0
        for query in queries:
            pool, passages = self._found(query)
            if len(passages) >= 2:
                made += 1
                yield TrainingList(query, passages, teacher(pool, passages))
        if not made:
            raise CollectionError(f"none of {len(queries)} queries finds two passages; nothing can be learnt")

    def _found(self, query: Query) -> tuple[Pool, tuple[Passage, ...]]:
        """What BM25 finds, as the fusion wants it, and with it what the retriever finds, its order first."""
        dense = self._current.retrievers[FirstStage.DENSE].search([query], self._depth)[0]
        bm25 = self._base.retrievers[FirstStage.BM25].search([query], self._depth)[0]
        doc_ids = list(dict.fromkeys(doc.doc_id for doc in [*dense, *bm25]))
        passages = {passage.doc_id: passage for passage in self._base.store.passages(doc_ids) if passage.text.strip()}
        by_bm25 = [Candidate(passages[doc.doc_id], doc.score) for doc in bm25 if doc.doc_id in passages]
        pool = make_pool(with_vector(self._encoder, query), by_bm25, grades={})
        return pool, tuple(passages.values())
