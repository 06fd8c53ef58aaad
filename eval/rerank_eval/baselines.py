"""Pointwise baselines that need no service: cosine, z-score fusion, oracle.

A listwise ranker must beat them to be worth its cost.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from rerank.errors import ConfigError
from rerank.readers.qrels import Qrel
from rerank.retrieval.hybrid import z_score_sum
from rerank.types import CandidateSource, Matrix, Query

if TYPE_CHECKING:
    from rerank.models.encoder import Encoder


class Scorer(Protocol):
    """Scores candidates one by one. `revision` is a hash of the model or data behind the scores, if there is any."""

    revision: str

    def __call__(self, query: Query, candidates: Sequence[CandidateSource]) -> list[float]:
        """One score per candidate, in the given order; higher is better."""
        ...


class Cosine:
    """Cosine of the encoder's vectors of query and passage. Each passage is encoded once."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._vectors: dict[str, Matrix] = {}
        self.revision = encoder.id.sha256

    def __call__(self, query: Query, candidates: Sequence[CandidateSource]) -> list[float]:
        texts = [candidate.text or "" for candidate in candidates]
        new = [text for text in dict.fromkeys(texts) if text not in self._vectors]
        self._vectors |= zip(new, self._encoder.encode(new), strict=True)
        query_vector = self._encoder.encode([query.text])[0]
        return [float(query_vector @ self._vectors[text]) for text in texts]


class ZScoreFusion:
    """0.3 × the first stage's score + the cosine, each as a z-score over the candidates, as in the hybrid retriever."""

    def __init__(self, cosine: Cosine) -> None:
        self._cosine = cosine
        self.revision = cosine.revision

    def __call__(self, query: Query, candidates: Sequence[CandidateSource]) -> list[float]:
        if any(candidate.score is None for candidate in candidates):
            raise ConfigError(f"query {query.query_id}: z-score needs a first-stage score of every candidate")
        first = {candidate.doc_id: candidate.score or 0.0 for candidate in candidates}
        second = dict(zip(first, self._cosine(query, candidates), strict=True))
        fused = z_score_sum([first, second])
        return [fused[candidate.doc_id] for candidate in candidates]


class Oracle:
    """Scores by the judgements themselves: the upper bound for any order of these candidates."""

    def __init__(self, qrels: Iterable[Qrel]) -> None:
        self._grades = {(qrel.query_id, qrel.doc_id): qrel.relevance for qrel in qrels}
        self.revision = hashlib.sha256(repr(sorted(self._grades.items())).encode()).hexdigest()

    def __call__(self, query: Query, candidates: Sequence[CandidateSource]) -> list[float]:
        return [max(self._grades.get((query.query_id, candidate.doc_id), 0), 0) for candidate in candidates]
