"""Learned sparse ranker: dot products, whether a passage comes with its vector, was read before, or is new."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rerank.config import LearnedSparseModel, ServiceConfig
from rerank.errors import InvalidRequest
from rerank.models.encoder import Encoder
from rerank.models.sparse_encoder import SparseEncoder
from rerank.rankers.base import rank_windows
from rerank.rankers.learned_sparse import LearnedSparseRanker
from rerank.reranking.registry import load_models
from rerank.reranking.reranker import AsyncReranker
from rerank.types import InterpolatedScores, Passage, Query, RankOptions, ScoreKind, Window
from tests.conftest import PASSAGES
from tests.sparse_encoders import write_sparse_encoder

QUERY = Query("how long does a flea live")
TEXTS = [f"{title} {text}" for title, text in PASSAGES.values()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sparse_encoder(tmp_path_factory.mktemp("sparse") / "bert")


@pytest.fixture
def encoder_of_sparse(folder: Path) -> SparseEncoder:
    return SparseEncoder(folder, "cpu", cache_bytes=1_000_000)


@pytest.fixture
def ranker(encoder_of_sparse: SparseEncoder) -> LearnedSparseRanker:
    return LearnedSparseRanker(encoder_of_sparse)


def ranked(ranker: LearnedSparseRanker, passages: list[Passage]) -> tuple[tuple[float, ...], int]:
    prepared = ranker.prepare(QUERY, [ranker.filled(passage) for passage in passages])
    (ranking,) = rank_windows(ranker, [Window(prepared.query, prepared.passages)])
    return ranking.scores, ranking.cached_passages


def passages(texts: list[str]) -> list[Passage]:
    return [Passage(f"d{number}", text) for number, text in enumerate(texts)]


def test_scores_are_dot_products_of_vectors(ranker: LearnedSparseRanker, encoder_of_sparse: SparseEncoder) -> None:
    vectors, query = encoder_of_sparse.encode(TEXTS, "float32"), encoder_of_sparse.encode_query(QUERY.text)
    scores, _ = ranked(ranker, passages(TEXTS))
    np.testing.assert_allclose(scores, encoder_of_sparse.scores(query, vectors), rtol=0.02)


def test_passage_with_a_vector_costs_no_model(
    ranker: LearnedSparseRanker, encoder_of_sparse: SparseEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = encoder_of_sparse.encode(TEXTS)
    monkeypatch.setattr(encoder_of_sparse, "_forward", None)
    given = [replace(each, sparse=vector) for each, vector in zip(passages(TEXTS), vectors, strict=True)]
    scores, cached = ranked(ranker, given)
    expected = encoder_of_sparse.scores(encoder_of_sparse.encode_query(QUERY.text), vectors)
    np.testing.assert_allclose(scores, expected, rtol=1e-6)
    assert cached == 0


def test_passages_that_come_again_count_as_cached(ranker: LearnedSparseRanker) -> None:
    first, cached = ranked(ranker, passages(TEXTS[:5]))
    again, cached_again = ranked(ranker, passages(TEXTS[3:8]))
    assert (cached, cached_again) == (0, 2)
    assert again[:2] == first[3:]


def test_score_of_a_passage_depends_on_no_other(folder: Path) -> None:
    ranker = LearnedSparseRanker(SparseEncoder(folder, "cpu"))
    together, _ = ranked(ranker, passages(TEXTS))
    alone = [ranked(ranker, [passage])[0][0] for passage in passages(TEXTS)]
    np.testing.assert_allclose(together, alone, rtol=0.02)
    assert ranker.info.score_kind is ScoreKind.POINTWISE


def test_empty_window_gives_no_scores(ranker: LearnedSparseRanker) -> None:
    assert ranked(ranker, []) == ((), 0)


def test_truncated_passages_are_named(ranker: LearnedSparseRanker) -> None:
    prepared = ranker.prepare(QUERY, [Passage("short", "a"), Passage("long", "a " * 500)])
    assert prepared.truncated_doc_ids == ("long",)


def test_query_that_is_too_long_is_refused(ranker: LearnedSparseRanker) -> None:
    ranker.prepare(Query("a " * 62), [])
    with pytest.raises(InvalidRequest, match=r"65 tokens long.* reads at most 64; shorten it"):
        ranker.prepare(Query("a " * 63), [])


def test_service_ranks_by_it_with_interpolation_and_says_what_was_cached(encoder: Encoder, folder: Path) -> None:
    model = LearnedSparseModel(name="sparse", ranker="learned-sparse")
    config = ServiceConfig(models=(model,), sparse_encoder=str(folder))
    sparse = SparseEncoder(folder, "cpu", cache_bytes=1_000_000)
    models = load_models(config.models, encoder, "cpu", sparse_encoder=lambda: sparse)
    candidates = [{"doc_id": f"d{n}", "text": text, "score": float(n)} for n, text in enumerate(TEXTS)]

    async def run() -> None:
        async with AsyncReranker(config, encoder, None, models) as reranker:
            cold = await reranker.rerank(QUERY, candidates, RankOptions())
            warm = await reranker.rerank(QUERY, candidates, RankOptions(interpolation=0.5))
        assert (cold.trace.cached_passages, warm.trace.cached_passages) == (0, len(TEXTS))
        assert (cold.score_kind, warm.score_kind) == (ScoreKind.POINTWISE, ScoreKind.INTERPOLATED)
        assert warm.trace.interpolation is not None
        assert warm.trace.interpolation.scores is InterpolatedScores.FIRST_STAGE
        assert [item.position for item in cold.ranked] != [item.position for item in warm.ranked]

    asyncio.run(run())
