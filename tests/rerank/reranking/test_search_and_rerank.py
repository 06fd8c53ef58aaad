"""The default orders a list alike: found by a search, sent as texts, or sent as references to the index."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest

from rerank.config import FusionModel, ServiceConfig
from rerank.models.encoder import Encoder
from rerank.models.sparse_encoder import SparseEncoder
from rerank.rankers.fusion import FusionRanker
from rerank.rankers.identity import IdentityRanker
from rerank.reranking.registry import ModelRegistry
from rerank.reranking.reranker import AsyncReranker
from rerank.retrieval.index import Index
from rerank.types import FirstStage, Passage, Ranking, RankOptions
from tests.conftest import PASSAGES

DEFAULT = FusionModel(name="default", ranker="fusion")


@pytest.fixture
async def reranker(encoder: Encoder, sparse_encoder: SparseEncoder, index: Index) -> AsyncIterator[AsyncReranker]:
    config = ServiceConfig(models=({"name": "default", "ranker": "fusion"}, {"name": "identity", "ranker": "identity"}))
    rankers = {"default": FusionRanker(DEFAULT, encoder, sparse_encoder), "identity": IdentityRanker()}
    async with AsyncReranker(config, encoder, index, ModelRegistry(config.models, rankers)) as made:
        yield made


def scores(ranking: Ranking) -> dict[str, float]:
    return {item.passage.doc_id: item.score for item in ranking.ranked}


def order(candidates: Sequence[Passage]) -> list[str]:
    return [candidate.doc_id for candidate in candidates]


@pytest.mark.parametrize("first_stage", FirstStage)
@pytest.mark.parametrize("query", ["how long does a flea live", "what causes high water", "searching text"])
async def test_search_texts_and_references_give_the_same_scores(
    reranker: AsyncReranker, first_stage: FirstStage, query: str
) -> None:
    """Before, a hybrid search counted by BM25 scores that no client sees, and each first stage had a weight."""
    depth = len(PASSAGES)
    found = (await reranker.search(query, first_stage, depth, RankOptions(model="identity"))).ranking
    searched = (await reranker.search(query, first_stage, depth, RankOptions())).ranking
    passages = [item.passage for item in found.ranked]
    texts = [Passage(passage.doc_id, passage.text, passage.score) for passage in passages]
    references = [replace(text, text="", in_index=True) for text in texts]
    for candidates in (texts, references):
        sent = await reranker.rerank(query, candidates, RankOptions())
        # in bfloat16, a vector depends on the batch of its text
        assert scores(sent) == pytest.approx(scores(searched), abs=0.1)
        assert sent.trace.first_stage_weight == pytest.approx(searched.trace.first_stage_weight, abs=1e-6)
    assert len(order(passages)) == len(searched.ranked)
