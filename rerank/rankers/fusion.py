"""Fusion: orders passages by a weighted sum of signals, without a language model.

The signals are the score of the first stage, BM25 over the texts of the list, the score of learned sparse vectors
(SPLADE), and the cosine of the encoder's vectors. Each is a z-score over the passages that it is read for. The cosine
costs most, so only the best passages by the others get it. Then the query's vector moves towards the passages that lead
so far, as in relevance feedback, and the cosine is taken again: no forward pass more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import numpy.typing as npt

from rerank.config import FusionModel
from rerank.models.batches import GPU_BATCH_TOKENS, batches_by_length
from rerank.models.encoder import Encoder
from rerank.models.sparse_encoder import SparseEncoder
from rerank.rankers.base import RankerInfo
from rerank.rankers.fused_scores import (
    CheapSignals,
    Floats,
    Signals,
    cheap_scores,
    fused_scores,
    weight_by_list,
    with_unread,
)
from rerank.rankers.lexical import READ_CHARS, StemCache, bm25, bundled_word_table
from rerank.types import Passage, Prepared, Query, ScoreKind, SparseVector, Vector, Window, WindowRanking
from rerank.util.words import stems

#: Tokens of a batch of texts to encode, between which other requests take their turns: some 50 ms of one core in
#: bfloat16.
_CPU_BATCH_TOKENS = 384


@dataclass(frozen=True, slots=True)
class TextBatch:
    """Texts that are encoded together.

    Attributes:
        beginnings: text → its beginning, which is read.
        truncated: texts that are longer than the encoder reads.
        tokens: that are read.
    """

    beginnings: Mapping[str, str]
    truncated: frozenset[str]
    tokens: int


class FusionRanker:
    """Ranks windows of passages by a fusion of signals.

    Args:
        settings: weights, and the depth to which the cosine is read.
        encoder: of the cosine.
        sparse_encoder: of the sparse score; None if its weight is 0.
    """

    def __init__(self, settings: FusionModel, encoder: Encoder, sparse_encoder: SparseEncoder | None) -> None:
        self._settings = settings
        self._encoder = encoder
        self._sparse = sparse_encoder
        self._words, self._stems = bundled_word_table(), StemCache(encoder.vector_cache.max_bytes)
        self._batch_tokens = GPU_BATCH_TOKENS if encoder.device.type == "cuda" else _CPU_BATCH_TOKENS
        names, hashes = [encoder.id.name, "words"], [encoder.id.sha256, self._words.sha256]
        if sparse_encoder is not None:
            names.append(sparse_encoder.id.name)
            hashes.append(sparse_encoder.id.sha256)
        self.info = RankerInfo(
            kind="fusion",
            model_id=" + ".join(names),
            model_revision="+".join(hashes),
            template_sha256="",
            max_window_size=settings.window_size,
            score_kind=ScoreKind.WINDOW_SCORE,
            reads_together=True,  # the texts of several windows run through the encoder together
            max_passage_tokens=encoder.max_text_tokens,
            reads_vectors=True,
            reads_sparse=sparse_encoder is not None,
            adds_first_stage=True,
            relevance="cosine" if encoder.relevance else "",
            max_encoded_passages=settings.cosine_depth or settings.window_size,
            gpu_batch_tokens=GPU_BATCH_TOKENS if encoder.device.type == "cuda" else 0,
            precision=encoder.pick_dtype("auto"),
        )

    def with_cached_vector(self, passage: Passage) -> Passage:
        passage = self._stems.with_cached_stems(self._encoder.vector_cache.with_cached_vector(passage))
        return passage if self._sparse is None else self._sparse.cache.with_cached_vector(passage)

    def prepare(self, query: Query, passages: Sequence[Passage]) -> Prepared:
        """Computes the query's vectors, and the passages' words and sparse scores; later slices have the former."""
        query, passages = self._encoder.with_vector(query), [self._stems.with_stems(passage) for passage in passages]
        if self._sparse is None:
            return Prepared(query, tuple(passages))
        query = self._sparse.with_vector(query)
        scored = tuple(self._sparse.scored(cast(SparseVector, query.sparse), passages))
        truncated = tuple(result.doc_id for result in scored if result.sparse and result.sparse.is_truncated)
        return Prepared(query, scored, truncated)

    def encode(self, window: Window) -> Window:
        """Groups the texts whose vectors are missing into batches of like lengths."""
        batches = self._batches(dict.fromkeys(self._missing(window)))
        return replace(window, tokens=sum(batch.tokens for batch in batches), batches=batches)

    def read(self, pieces: Sequence[TextBatch]) -> list[Mapping[str, Vector]]:
        """Returns the vectors of the texts of each batch, which are kept for later requests."""
        read = {text: beginning for batch in pieces for text, beginning in batch.beginnings.items()}
        vector_of = dict(zip(read, self._encoder.encode_passages(list(read.values()), "auto"), strict=True))
        for batch in pieces:
            for text in batch.beginnings:
                self._encoder.vector_cache.put(text, vector_of[text], text in batch.truncated)
        return [{text: vector_of[text] for text in batch.beginnings} for batch in pieces]

    def ranking(self, window: Window, results: Sequence[Mapping[str, Vector]]) -> WindowRanking:
        """Returns the fused scores of the passages, with their cosines."""
        cheap = self._cheap_signals(window)
        weight = weight_by_list(self._settings, window.first_stage_weight, cheap)
        scores, cosines = self._fused(window, cheap, weight, _joined(results))
        return WindowRanking(tuple(scores.tolist()), cosines=tuple(cosines.tolist()), first_stage_weight=weight)

    def _missing(self, window: Window) -> list[str]:
        """Returns the texts of the passages whose cosine is read and whose vector is not known."""
        passages = [window.passages[place] for place in self._best(window, self._cheap_scores(window))]
        return [passage.text for passage in passages if passage.vector is None]

    def _batches(self, texts: Iterable[str]) -> tuple[TextBatch, ...]:
        """Divides texts into batches of so many tokens as a model reads at once."""
        limit, beginnings = self._encoder.max_text_tokens, {text: self._encoder.beginning(text) for text in texts}
        counts = dict(zip(beginnings, self._encoder.token_counts(list(beginnings.values())), strict=True))
        read = {text: min(count, limit) for text, count in counts.items()}
        batches = list[TextBatch]()
        for rows in batches_by_length(list(read.values()), self._batch_tokens):
            some = [list(read)[row] for row in rows]
            truncated = frozenset(text for text in some if counts[text] > limit)
            batches.append(
                TextBatch({text: beginnings[text] for text in some}, truncated, sum(read[text] for text in some))
            )
        return tuple(batches)

    def _best(self, window: Window, scores: Floats) -> npt.NDArray[np.intp]:
        """Returns the places whose cosine is read: the best passages by `scores`, and those with a vector of an index.

        A vector that an earlier request left counts for nothing here, as the order must not depend on earlier requests.
        """
        depth = self._settings.cosine_depth or len(scores)
        best = set(np.argsort(-scores, kind="stable")[:depth].tolist())
        of_index = (p.vector is not None and not p.vector_cached for p in window.passages)
        return np.array([place for place, is_known in enumerate(of_index) if is_known or place in best], dtype=np.intp)

    def _cheap_signals(self, window: Window) -> CheapSignals:
        first_stage = np.array(window.first_stage or [0.0] * len(window.passages))
        lexical = bm25(
            stems(window.query.text[:READ_CHARS]), [passage.stems or () for passage in window.passages], self._words
        )
        sparse = (
            None if self._sparse is None else np.array([passage.sparse_score or 0.0 for passage in window.passages])
        )
        return CheapSignals(first_stage, lexical, sparse)

    def _cheap_scores(self, window: Window) -> Floats:
        """Returns the (n,) scores by which the passages whose cosine is read are chosen."""
        signals = self._cheap_signals(window)
        weight = weight_by_list(self._settings, window.first_stage_weight, signals)
        return cheap_scores(self._settings, weight, signals)

    def _fused(
        self, window: Window, cheap: CheapSignals, weight: float, vector_of: Mapping[str, Vector]
    ) -> tuple[Floats, Floats]:
        """Returns the (n,) fused scores, and the (n,) cosines of the query's own vector, NaN where none was read."""
        scores = cheap_scores(self._settings, weight, cheap)
        cosines = np.full(len(scores), np.nan)
        if window.query.vector is None:
            raise ValueError("the query of a window has no vector; this is a bug")
        best = self._best(window, scores)
        if not len(best):
            return scores, cosines
        passages = [window.passages[place] for place in best]
        vectors = [vector_of[passage.text] if passage.vector is None else passage.vector for passage in passages]
        signals = Signals(cheap.select(best), np.stack(vectors), window.query.vector)
        fused = fused_scores(self._settings, weight, signals)
        cosines[best] = signals.cosines
        return with_unread(scores, best, fused), cosines


def _joined(vectors: Iterable[Mapping[str, Vector]]) -> dict[str, Vector]:
    return {text: vector for some in vectors for text, vector in some.items()}
