"""Texts that come again to a model that reads vectors: known vectors, the same answer, and a reply that says so."""

import copy
from contextlib import AbstractContextManager, nullcontext

import pytest

from rerank.config import FusionModel
from rerank.engine.accounts import CallUsage, Shared
from rerank.models.encoder import Encoder
from rerank.models.vector_cache import VectorCache
from rerank.rankers.fusion import FusionRanker
from rerank.rankers.pe_rank import PERankRanker
from rerank.types import RankOptions
from tests.conftest import PASSAGES
from tests.serving import METRICS, http_service, reranker_of

QUERY = "how long does a flea live"
TEXTS = [text for _, text in PASSAGES.values()]


def with_cache(encoder: Encoder, max_bytes: int) -> Encoder:
    """The encoder with a new, empty cache."""
    copied = copy.copy(encoder)
    copied.vector_cache = VectorCache(max_bytes)
    return copied


def test_metrics_count_the_hits(checkpoint, encoder):
    cached = with_cache(encoder, 1_000_000)
    rankers = {"pe-rank": PERankRanker(checkpoint, cached, "cpu")}
    body = {"model": "pe-rank", "query": QUERY, "documents": TEXTS}
    with http_service(rankers, encoder=cached, telemetry=METRICS) as served:
        first, second = (served.http.post("/v2/rerank", body).json["results"] for _ in range(2))
        assert first == second
        for result in ("hit", "miss"):
            assert served.metric("rerank_text_vectors_total", result=result) == len(TEXTS)


@pytest.mark.parametrize("model", ["pe-rank", "fusion"])
async def test_tokens_are_those_of_the_texts_cached_or_not(checkpoint, encoder, model):
    cached = with_cache(encoder, 1_000_000)
    settings = FusionModel(name="fusion", ranker="fusion", sparse_weight=0.0)
    rankers = {"pe-rank": PERankRanker(checkpoint, cached, "cpu"), "fusion": FusionRanker(settings, cached, None)}
    texts = [*TEXTS[:4], TEXTS[0], "", "long " * 300]
    async with reranker_of(rankers, encoder=cached) as reranker:
        cold, warm, half = [
            (await reranker.rerank(QUERY, some, RankOptions(model=model))).trace.tokens
            for some in (texts[:5], texts[:5], texts)
        ]
        assert cached.vector_cache.hits >= 5
    async with reranker_of(rankers, encoder=with_cache(encoder, 0)) as reranker:
        uncached = (await reranker.rerank(QUERY, texts, RankOptions(model=model))).trace.tokens
    assert cold == warm > 0
    assert half == uncached > cold


async def test_known_vectors_are_not_expected_work(checkpoint, encoder, monkeypatch):
    expected = list[int]()

    def acquired(usage: CallUsage, kind: Shared, amount: int, retry_s: object) -> AbstractContextManager[None]:
        expected.append(amount)
        return nullcontext()

    cached = with_cache(encoder, 1_000_000)
    async with reranker_of({"pe-rank": PERankRanker(checkpoint, cached, "cpu")}, encoder=cached) as reranker:
        monkeypatch.setattr(reranker.engine.accounts, "acquired", acquired)
        for _ in range(2):
            await reranker.rerank(QUERY, TEXTS, RankOptions())
    new, known = expected
    assert known < new - 10 * len(TEXTS)
