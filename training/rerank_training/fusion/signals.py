"""The signals of judged lists, as serving computes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
from rich.console import Console

from rerank.commands.progress import with_progress
from rerank.engine.scores import reciprocal_ranks
from rerank.models.encoder import Encoder
from rerank.models.sparse_encoder import SparseEncoder
from rerank.rankers.fused_scores import Signals
from rerank.rankers.fusion import cheap_signals
from rerank.rankers.lexical import READ_CHARS
from rerank.util.words import stems
from rerank_training.lists.training_list import TrainingList
from rerank_training.lists.vector_table import VectorTable, texts_of


@dataclass(frozen=True, slots=True)
class SignalList:
    """The signals of a list's n passages, and their relevance (n,)."""

    signals: Signals
    relevance: npt.NDArray[np.float32]


def signals_of(
    lists: Sequence[TrainingList], encoder: Encoder, sparse_encoder: SparseEncoder, console: Console
) -> Iterator[SignalList]:
    """The signals of lists, with progress bars. Each text is encoded once, passages with a vector not at all."""
    queries = VectorTable(encoder.encode_queries, texts_of([lists], "queries"), console)
    missing = (passage.text for item in lists for passage in item.passages if passage.vector is None)
    passages = VectorTable(partial(encoder.encode_passages, dtype="auto"), missing, console)
    for item in with_progress(lists, "lists", len(lists), console):
        first_stage = np.array(item.scores or reciprocal_ranks(len(item.passages)), dtype=np.float64)
        # With the query's vector at unit length, as `FusionRanker.prepare` computes the sparse scores.
        scored = sparse_encoder.scored(sparse_encoder.encode_query(item.query.text).unit(), item.passages)
        sparse = np.array([passage.sparse_score for passage in scored], dtype=np.float64)
        vectors = [passages([p.text])[0] if p.vector is None else p.vector for p in item.passages]
        words = [stems(passage.text[:READ_CHARS]) for passage in item.passages]
        cheap = cheap_signals(item.query, words, first_stage, sparse, encoder)
        signals = Signals(cheap, np.stack(vectors), queries([item.query.text])[0])
        yield SignalList(signals, np.array(item.relevance, dtype=np.float32))
