"""Evaluation of the distilled retriever: R@100 and nDCG@10 of held-out queries, with a paired t-test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from rerank.errors import ConfigError
from rerank.models.encoder import Encoder
from rerank.readers.qrels import Qrel
from rerank.retrieval.dense import DenseRetriever
from rerank.retrieval.index import read_manifest
from rerank.retrieval.store import PassageStore
from rerank.retrieval.vector_index import open_vector_index
from rerank.types import Query

try:
    import ir_measures
    from scipy import stats
except ModuleNotFoundError as error:
    raise ConfigError(
        f"{error.name}, which evaluates held-out queries, is not installed; install rerank-listwise[train]"
    ) from error

_MEASURES = (ir_measures.R @ 100, ir_measures.nDCG @ 10)
_DEPTH = 100

#: Measure → query_id → value.
Measured = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class Change:
    """Mean of a measure before and after the training, with the two-sided p of the paired t-test."""

    before: float
    after: float
    p: float


def evaluate_index(index: Path, device: str, queries: Sequence[Query], qrels: Sequence[Qrel]) -> Measured:
    """Both measures of dense retrieval for each query; 0 for a query without results."""
    store, encoder = PassageStore(index), Encoder(read_manifest(index).encoder.name, device)
    dense = DenseRetriever(open_vector_index("flat", index, store.vectors), encoder, len(store))
    run = [
        ir_measures.ScoredDoc(query.query_id, doc.doc_id, -rank)
        for query, hits in zip(queries, dense.search(queries, _DEPTH), strict=True)
        for rank, doc in enumerate(store.scored_docs(hits))
    ]
    judged = [ir_measures.Qrel(qrel.query_id, qrel.doc_id, max(qrel.relevance, 0)) for qrel in qrels]
    values = {str(measure): {query.query_id: 0.0 for query in queries} for measure in _MEASURES}
    for metric in ir_measures.iter_calc(_MEASURES, judged, run):
        values[str(metric.measure)][metric.query_id] = metric.value
    return values


def changes(before: Measured, after: Measured) -> dict[str, Change]:
    """The change of each measure; both must hold the same queries."""
    return {name: _change(list(before[name].values()), [after[name][key] for key in before[name]]) for name in before}


def _change(before: Sequence[float], after: Sequence[float]) -> Change:
    differs = len(before) > 1 and any(b != a for b, a in zip(before, after, strict=True))
    p = float(stats.ttest_rel(after, before).pvalue) if differs else 1.0
    return Change(fmean(before), fmean(after), p)
