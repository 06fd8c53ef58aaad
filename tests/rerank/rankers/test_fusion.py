"""Fusion: a slow computation gives the same order, which depends on nothing but the request; texts run in batches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rerank.config import FusionModel
from rerank.models.encoder import Encoder
from rerank.models.sparse_encoder import SparseEncoder
from rerank.rankers.base import rank_windows
from rerank.rankers.fused_scores import FEEDBACK_WEIGHT, FULL_AGREEMENT
from rerank.rankers.fusion import FusionRanker
from rerank.types import Passage, Query, Window
from tests.conftest import PASSAGES

QUERY = Query("how long does a flea live")
TEXTS = [f"{title} {text}" for title, text in PASSAGES.values()]


def fusion(encoder: Encoder, sparse_encoder: SparseEncoder | None, **settings: Any) -> FusionRanker:
    return FusionRanker(FusionModel(name="fusion", ranker="fusion", **settings), encoder, sparse_encoder)


def window(ranker: FusionRanker, texts: list[str], first_stage: list[float] | None = None) -> Window:
    prepared = ranker.prepare(QUERY, [Passage(f"d{place}", text) for place, text in enumerate(texts)])
    scores = tuple(first_stage or ())
    return Window(prepared.query, prepared.passages, first_stage=scores, first_stage_weight=0.3 if scores else 0.0)


def z(values: list[float]) -> list[float]:
    mean = sum(values) / len(values)
    deviation = (sum((value - mean) ** 2 for value in values) / len(values)) ** 0.5
    return [(value - mean) / deviation if deviation else 0.0 for value in values]


def slow_order(window: Window, encoder: Encoder, settings: FusionModel) -> list[int]:
    """The order, computed passage by passage in Python's floats."""
    first_stage = list(window.first_stage) or [0.0] * len(window.passages)
    sparse = [passage.sparse_score or 0.0 for passage in window.passages]

    def others(places: list[int], agreement: float = 1.0) -> list[float]:
        of_sparse, of_first_stage = z([sparse[p] for p in places]), z([first_stage[p] for p in places])
        return [
            agreement * settings.sparse_weight * s + window.first_stage_weight * f
            for s, f in zip(of_sparse, of_first_stage, strict=True)
        ]

    everywhere = list(range(len(sparse)))
    cheap = others(everywhere)
    by_cheap = sorted(everywhere, key=lambda place: -cheap[place])
    best = sorted(by_cheap[: settings.cosine_depth])
    vectors = encoder.encode_passages([window.passages[place].text for place in best], "auto").astype(float)
    query = window.query.vector.astype(float)  # type: ignore[union-attr]
    cosines = z([float(vector @ query) for vector in vectors])
    of_sparse = z([sparse[place] for place in best])
    correlation = sum(c * s for c, s in zip(cosines, of_sparse, strict=True)) / len(best)
    agreement = min(max(correlation / FULL_AGREEMENT, 0.0), 1.0)
    fused = [o + c for o, c in zip(others(best, agreement), cosines, strict=True)]
    leading = sorted(range(len(best)), key=lambda row: -fused[row])[: settings.feedback_passages]
    shares = [float(np.exp(fused[row])) for row in leading]
    mean = sum(share / sum(shares) * vectors[row] for share, row in zip(shares, leading, strict=True))
    moved = query + agreement * FEEDBACK_WEIGHT * (mean - query)
    moved /= np.linalg.norm(moved)
    cosines = z([float(vector @ moved) for vector in vectors])
    fused = [o + c for o, c in zip(others(best, agreement), cosines, strict=True)]
    means = []
    for own, vector in enumerate(vectors):
        near = sorted((row for row in range(len(best)) if row != own), key=lambda row: -float(vectors[row] @ vector))
        means.append(sum(fused[row] for row in near[:5]) / len(near[:5]))
    fused = [f + settings.smoothing_weight * m for f, m in zip(z(fused), z(means), strict=True)]
    rest = [place for place in by_cheap if place not in best]
    return [best[row] for row in sorted(range(len(best)), key=lambda row: -fused[row])] + rest


def test_order_is_that_of_the_slow_computation(encoder: Encoder, sparse_encoder: SparseEncoder) -> None:
    ranker = fusion(encoder, sparse_encoder, cosine_depth=5)
    draw = np.random.default_rng(3)
    for n in (2, 5, len(TEXTS)):
        of_list = window(ranker, TEXTS[:n], draw.normal(size=n).tolist())
        (ranking,) = rank_windows(ranker, [of_list])
        settings = FusionModel(name="fusion", ranker="fusion", cosine_depth=5)
        assert list(ranking.permutation) == slow_order(of_list, encoder, settings), n


def test_sparse_score_counts_nothing_where_the_models_disagree(encoder: Encoder, sparse_encoder: SparseEncoder) -> None:
    ranker = fusion(encoder, sparse_encoder, feedback_passages=0)
    of_list = window(ranker, TEXTS)
    (by_cosine,) = rank_windows(fusion(encoder, None, sparse_weight=0.0, feedback_passages=0), [of_list])
    opposite = (
        replace(passage, sparse_score=-cosine)
        for passage, cosine in zip(of_list.passages, by_cosine.cosines, strict=True)
    )
    (ranking,) = rank_windows(ranker, [replace(of_list, passages=tuple(opposite))])
    assert ranking.permutation == by_cosine.permutation


def test_passages_beyond_the_depth_stand_below_all_others(encoder: Encoder, sparse_encoder: SparseEncoder) -> None:
    ranker = fusion(encoder, sparse_encoder, cosine_depth=3)
    (ranking,) = rank_windows(ranker, [window(ranker, TEXTS)])
    has_cosine = ~np.isnan(ranking.cosines)
    scores = np.array(ranking.scores)
    assert has_cosine.sum() == 3
    assert scores[has_cosine].min() > scores[~has_cosine].max()


def test_order_is_the_same_for_texts_of_earlier_requests(encoder: Encoder, sparse_encoder: SparseEncoder) -> None:
    caching = Encoder(device="cpu", vector_cache_bytes=1_000_000)
    ranker = fusion(caching, sparse_encoder, cosine_depth=4)
    of_list = window(ranker, TEXTS)
    (cold,) = rank_windows(ranker, [of_list])
    for text in TEXTS:  # a later request with a greater depth leaves all vectors
        caching.vector_cache.put(text, caching.encode_passages([text])[0], False)
    warm_list = replace(of_list, passages=tuple(map(ranker.with_cached_vector, of_list.passages)))
    assert all(passage.vector_cached for passage in warm_list.passages)
    (warm,) = rank_windows(ranker, [warm_list])
    assert warm.permutation == cold.permutation
    assert np.isnan(warm.cosines).sum() == len(TEXTS) - 4


def test_sparse_signal_is_the_dot_product_with_the_query_at_unit_length(
    encoder: Encoder, sparse_encoder: SparseEncoder
) -> None:
    ranker = fusion(encoder, sparse_encoder)
    query, passages = sparse_encoder.encode_query(QUERY.text), sparse_encoder.encode_passages(TEXTS, "float32")
    weights = dict(zip(query.terms.tolist(), query.weights.tolist(), strict=True))
    length = sum(weight * weight for weight in weights.values()) ** 0.5
    slow = [
        sum(weights.get(term, 0.0) * weight for term, weight in zip(p.terms.tolist(), p.weights.tolist(), strict=True))
        for p in passages
    ]
    scores = [passage.sparse_score for passage in window(ranker, TEXTS).passages]
    assert scores == pytest.approx([weight / length for weight in slow], rel=0.05, abs=0.02)


def test_slices_encode_the_query_once_and_score_as_one(encoder: Encoder, sparse_encoder: SparseEncoder) -> None:
    ranker = fusion(encoder, sparse_encoder)
    passages = [Passage(f"d{place}", text) for place, text in enumerate(TEXTS)]
    whole = ranker.prepare(QUERY, passages)
    first = ranker.prepare(QUERY, passages[:3])
    second = ranker.prepare(first.query, passages[3:])
    assert first.query.sparse is not None
    assert second.query is first.query
    scores = [passage.sparse_score for passage in (*first.passages, *second.passages)]
    assert scores == pytest.approx([passage.sparse_score for passage in whole.passages])


def test_all_passages_of_an_index_have_a_cosine(encoder: Encoder, sparse_encoder: SparseEncoder) -> None:
    ranker = fusion(encoder, sparse_encoder, cosine_depth=2)
    of_list = window(ranker, TEXTS)
    vectors = encoder.encode_passages(TEXTS)
    passages = (replace(passage, vector=vector) for passage, vector in zip(of_list.passages, vectors, strict=True))
    (ranking,) = rank_windows(ranker, [replace(of_list, passages=tuple(passages))])
    assert not np.isnan(ranking.cosines).any()


def test_texts_are_encoded_in_batches_and_counted_as_far_as_they_are_read(
    encoder: Encoder, sparse_encoder: SparseEncoder
) -> None:
    """A request of 20 x 198,000 characters was counted whole, and the requests after it were refused."""
    ranker = fusion(encoder, sparse_encoder)
    encoded = ranker.encode(window(ranker, [f"{number} " + ". " * 99_000 for number in range(9)]))
    assert encoded.tokens == sum(batch.tokens for batch in encoded.pieces) == 9 * encoder.max_text_tokens
    assert [len(batch.beginnings) for batch in encoded.pieces] == [1] * 9


def test_query_longer_than_an_encoder_reads_is_truncated(encoder: Encoder, sparse_encoder: SparseEncoder) -> None:
    """MiniLM reads 254 tokens, splade-tiny 510."""
    ranker = fusion(encoder, sparse_encoder)
    fits, longer, longest = (ranker.prepare(Query("flea " * n), []).query for n in (254, 400, 9000))
    assert [query.is_truncated for query in (fits, longer, longest)] == [False, True, True]
    np.testing.assert_allclose(np.stack([longer.vector, longest.vector]), np.stack([fits.vector] * 2), atol=1e-5)
    assert [sparse_encoder.reads_whole_query("flea " * n) for n in (510, 511, 9000)] == [True, False, False]
