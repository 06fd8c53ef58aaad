"""Evaluation of the distilled retriever: R@100 and nDCG@10 of held-out queries, with a paired t-test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import ir_measures

from rerank.models.encoder import Encoder
from rerank.readers.qrels import Qrel
from rerank.retrieval.dense import DenseRetriever
from rerank.retrieval.index import read_manifest
from rerank.retrieval.store import PassageStore
from rerank.retrieval.vector_index import open_vector_index
from rerank.types import Query
from rerank_training.trainer.change import Change

_MEASURES = (ir_measures.R @ 100, ir_measures.nDCG @ 10)
_DEPTH = 100

#: Measure → query_id → value.
Measured = Mapping[str, Mapping[str, float]]


def evaluate_index(index: Path, device: str, queries: Sequence[Query], qrels: Sequence[Qrel]) -> Measured:
    """Both measures of dense retrieval for each query; 0 for a query without results."""
    store, encoder = PassageStore(index), Encoder(read_manifest(index).encoder.settings, device)
    dense = DenseRetriever(open_vector_index("flat", index, store.vectors), encoder, len(store))
    run = [
        ir_measures.ScoredDoc(query.query_id, doc.doc_id, -rank)
        for query, hits in zip(queries, dense.search(queries, _DEPTH), strict=True)
        for rank, doc in enumerate(store.scored_docs(hits))
    ]
    values = {str(measure): {query.query_id: 0.0 for query in queries} for measure in _MEASURES}
    for metric in ir_measures.iter_calc(_MEASURES, qrels, run):
        values[str(metric.measure)][metric.query_id] = metric.value
    return values


def changes(before: Measured, after: Measured) -> dict[str, Change]:
    """The change of each measure; both must hold the same queries."""
    return {
        name: Change.of(name, list(before[name].values()), [after[name][key] for key in before[name]])
        for name in before
    }
