"""Fusion: orders passages by a weighted sum of signals, without a language model.

The signals are the score of the first stage, BM25 over the texts of the list, the score of learned sparse vectors
(SPLADE), and the cosine of the encoder's vectors. Each becomes a z-score over the passages that have it. The cosine
costs most, so only the best passages by the other signals get it. Then the query's vector moves towards the leading
passages, as in relevance feedback, and the cosines are computed again, which needs no further forward pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from rerank.config import FusionModel
from rerank.models.batches import GPU_BATCH_TOKENS, batches_by_length
from rerank.models.encoder import DEFAULT_ENCODER, Encoder
from rerank.models.sparse_encoder import SparseEncoder
from rerank.rankers.base import Ranker, RankerInfo
from rerank.rankers.fused_scores import (
    CheapSignals,
    Floats,
    Indices,
    Signals,
    cheap_scores,
    list_scores,
    weight_by_list,
)
from rerank.rankers.lexical import StemCache, bundled_word_table, known_words, refitted, word_parts
from rerank.types import Passage, PreparedTexts, Query, ScoreKind, SparseVector, Vector, Window, WindowRanking

#: Number of tokens in a batch on a CPU, some 50 ms of one core in bfloat16. Other requests run between batches.
_CPU_BATCH_TOKENS = 384


@dataclass(frozen=True, slots=True)
class TextBatch:
    """Texts that are encoded together.

    Attributes:
        beginnings: text → the beginning that the encoder reads.
        truncated: texts with more tokens than the encoder reads.
        tokens_of: text → the number of its tokens that the encoder reads.
        vectors: text → vector, for the texts encoded so far; all batches of the window share it.
        texts: number of texts in all batches of the window, whose vectors `vectors` gets.
        cheap: the signals of the window that need no vector.
        read: indices of the passages whose cosine is read.
    """

    window: Window
    beginnings: Mapping[str, str]
    truncated: frozenset[str]
    tokens_of: Mapping[str, int]
    vectors: dict[str, Vector]
    texts: int
    cheap: CheapSignals
    read: Indices

    @property
    def tokens(self) -> int:
        """The number of tokens in the batch."""
        return sum(self.tokens_of.values())


class FusionRanker(Ranker):
    """Ranks windows of passages by a fusion of signals.

    Args:
        settings: weights, and number of passages that get a cosine.
        encoder: gives the vectors for the cosine.
        sparse_encoder: gives the sparse score; None if its weight is 0.
    """

    def __init__(self, settings: FusionModel, encoder: Encoder, sparse_encoder: SparseEncoder | None) -> None:
        self._settings = settings
        self._encoder = encoder
        self._sparse = sparse_encoder
        self._stems = StemCache(encoder.vector_cache.max_bytes)
        self._batch_tokens = GPU_BATCH_TOKENS if encoder.device.type == "cuda" else _CPU_BATCH_TOKENS
        names, hashes = [encoder.id.name, "words"], [encoder.id.sha256, bundled_word_table().sha256]
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
            supports_batching=True,  # the texts of several windows run through the encoder together
            has_cache=True,
            max_passage_tokens=encoder.max_text_tokens,
            needs_vectors=True,
            needs_sparse=sparse_encoder is not None,
            adds_first_stage=True,
            relevance="cosine" if encoder.relevance else "",
            max_encoded_passages=settings.cosine_depth or settings.window_size,
            gpu_batch_tokens=GPU_BATCH_TOKENS if encoder.device.type == "cuda" else 0,
            precision=encoder.pick_dtype("auto"),
        )

    def with_cached(self, passage: Passage) -> Passage:
        passage = self._encoder.vector_cache.with_cached_vector(passage)
        return passage if self._sparse is None else self._sparse.cache.with_cached_vector(passage)

    def prepare(self, query: Query, passages: Sequence[Passage]) -> PreparedTexts:
        """Computes stems and sparse scores of the passages, and in the first slice the vectors of the query."""
        query, stems = self._encoder.with_vector(query), [self._stems.stems_of(passage) for passage in passages]
        if self._sparse is None:
            pairs = zip(passages, stems, strict=True)
            return PreparedTexts(query, tuple(replace(passage, stems=found) for passage, found in pairs))
        query = self._sparse.with_vector(query)
        encoded = self._sparse.encoded(passages)
        scores = self._sparse.scores(cast(SparseVector, query.sparse), encoded).tolist()
        prepared, truncated = list[Passage](), list[str]()
        for passage, found, sparse, score in zip(passages, stems, encoded, scores, strict=True):
            prepared.append(replace(passage, stems=found, sparse=sparse, sparse_score=score))
            if sparse.is_truncated:
                truncated.append(passage.doc_id)
        return PreparedTexts(query, tuple(prepared), tuple(truncated))

    def encode(self, window: Window) -> Window:
        """Groups the texts whose vectors are missing into batches of similar lengths."""
        cheap = self._cheap_signals(window)
        read = self._read(window, cheap)
        batches = self._batches(window, cheap, read)
        known = {p.text: p.cached_tokens or 0 for p in (window.passages[index] for index in read)}
        return replace(window, tokens=sum(known.values()) + sum(batch.tokens for batch in batches), parts=batches)

    def score(self, parts: Sequence[TextBatch]) -> list[WindowRanking | None]:
        """Encodes batches of texts, caches their vectors, and ranks the windows that now have all vectors."""
        read = {text: beginning for batch in parts for text, beginning in batch.beginnings.items()}
        vectors = self._encoder.encode_passages(list(read.values()), "auto") if read else ()
        vector_of = dict(zip(read, vectors, strict=True))
        for batch in parts:
            for text in batch.beginnings:
                is_truncated = text in batch.truncated
                self._encoder.vector_cache.put(text, vector_of[text], batch.tokens_of[text], is_truncated)
        return [self._score(batch, vector_of) for batch in parts]

    def _score(self, batch: TextBatch, vector_of: Mapping[str, Vector]) -> WindowRanking | None:
        batch.vectors.update((text, vector_of[text]) for text in batch.beginnings)
        return self._ranking(batch) if len(batch.vectors) == batch.texts else None

    def _ranking(self, batch: TextBatch) -> WindowRanking:
        """Returns the fused scores of the passages, with their cosines."""
        window, cheap, read = batch.window, batch.cheap, batch.read
        if window.query.vector is None:
            raise ValueError("the query of a window has no vector; this is a bug")
        if not len(read):
            return WindowRanking(())
        passages = [window.passages[index] for index in read]
        of_read = [batch.vectors[passage.text] if passage.vector is None else passage.vector for passage in passages]
        signals = Signals(cheap.select(read), np.stack(of_read), window.query.vector)
        scores, weight = list_scores(self._settings, window.weight, cheap, read, signals)
        cosines = np.full(len(scores), np.nan)
        cosines[read] = signals.cosines
        return WindowRanking(
            tuple(scores.tolist()), cosines=tuple(cosines.tolist()), weight=weight, warning=_warning(cheap)
        )

    def _batches(self, window: Window, cheap: CheapSignals, read: Indices) -> tuple[TextBatch, ...]:
        """Divides the texts whose vectors are missing into batches that the encoder reads at once.

        If no vector is missing, returns one empty batch, so that the window is ranked.
        """
        passages = (window.passages[index] for index in read)
        texts = list(dict.fromkeys(passage.text for passage in passages if passage.vector is None))
        limit, beginnings = self._encoder.max_text_tokens, {text: self._encoder.beginning(text) for text in texts}
        counts = dict(zip(beginnings, self._encoder.token_counts(list(beginnings.values())), strict=True))
        tokens_of = {text: min(count, limit) for text, count in counts.items()}
        vectors, batches = dict[str, Vector](), list[TextBatch]()
        for rows in batches_by_length(list(tokens_of.values()), self._batch_tokens) if texts else [[]]:
            some = [texts[row] for row in rows]
            truncated = frozenset(text for text in some if counts[text] > limit)
            of_batch, tokens = {text: beginnings[text] for text in some}, {text: tokens_of[text] for text in some}
            batches.append(TextBatch(window, of_batch, truncated, tokens, vectors, len(texts), cheap, read))
        return tuple(batches)

    def _read(self, window: Window, cheap: CheapSignals) -> Indices:
        """Returns the indices of the passages whose cosine is read.

        These are the best passages by the other signals, and all passages with a vector from an index. Cached vectors
        do not count, because the order must not depend on earlier requests.
        """
        weight = weight_by_list(self._settings, window.weight, cheap)
        scores = cheap_scores(self._settings, weight, cheap)
        depth = self._settings.cosine_depth or len(scores)
        best = set(np.argsort(-scores, kind="stable")[:depth].tolist())
        of_index = (p.vector is not None and p.cached_tokens is None for p in window.passages)
        return np.array([row for row, is_known in enumerate(of_index) if is_known or row in best], dtype=np.intp)

    def _cheap_signals(self, window: Window) -> CheapSignals:
        first_stage = np.array(window.first_stage or [0.0] * len(window.passages))
        words = [passage.stems or () for passage in window.passages]
        sparse = (
            None if self._sparse is None else np.array([passage.sparse_score or 0.0 for passage in window.passages])
        )
        return cheap_signals(window.query, words, first_stage, sparse, self._encoder)


def _warning(cheap: CheapSignals) -> str:
    if cheap.knowledge == 1:
        return ""
    return (
        f"the model knows {cheap.known_words:.0%} of the words of these texts, so its English parts count with "
        f"{cheap.knowledge:.0%} of their weight and the first stage with more; for other languages, set encoder"
    )


def cheap_signals(
    query: Query, words: Sequence[Sequence[str]], first_stage: Floats, sparse: Floats | None, encoder: Encoder
) -> CheapSignals:
    """Returns the signals of a list that need no vector.

    Args:
        words: the stems of each passage.
        first_stage, sparse: see CheapSignals.
        encoder: gives the vectors for the cosine. A configured encoder is assumed to read the language of the texts.
    """
    known = known_words(words, bundled_word_table()) if encoder.id.name == DEFAULT_ENCODER else 1.0
    return CheapSignals(first_stage, refitted(word_parts(query, words), first_stage), sparse, known)
