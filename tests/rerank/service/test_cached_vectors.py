"""Texts that come again to a model that reads vectors: known vectors, the same answer, and a reply that says so."""

from __future__ import annotations

import copy
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from rerank.config import FusionModel, HttpConfig, TelemetryConfig
from rerank.engine.accounts import CallUsage, Shared
from rerank.models.encoder import Encoder
from rerank.models.vector_cache import VectorCache
from rerank.rankers.fusion import FusionRanker
from rerank.rankers.pe_rank import PERankRanker
from rerank.reranking.reranker import AsyncReranker
from rerank.types import RankOptions
from tests.conftest import PASSAGES
from tests.fakes import NumberRanker
from tests.http_client import HttpClient, serving_http
from tests.serving import Served, reranker_of

QUERY = "how long does a flea live"
TEXTS = [text for _, text in PASSAGES.values()]


def with_cache(encoder: Encoder, max_bytes: int) -> Encoder:
    """The encoder with a new, empty cache."""
    copied = copy.copy(encoder)
    copied.vector_cache = VectorCache(max_bytes)
    return copied


def make_reranker(checkpoint: Path, encoder: Encoder) -> AsyncReranker:
    rankers = {"pe-rank": PERankRanker(checkpoint, encoder, "cpu"), "number": NumberRanker()}
    telemetry = TelemetryConfig(metrics="127.0.0.1:0")
    return reranker_of(encoder, rankers, http=HttpConfig(listen="127.0.0.1:0"), telemetry=telemetry)


@pytest.fixture
def served(checkpoint: Path, encoder: Encoder) -> Iterator[tuple[Served, HttpClient]]:
    with serving_http(make_reranker(checkpoint, with_cache(encoder, 1_000_000))) as opened:
        yield opened


def test_metrics_count_the_hits(served: tuple[Served, HttpClient]) -> None:
    service, http = served
    body = {"model": "pe-rank", "query": QUERY, "documents": TEXTS}
    replies = [http.post("/v2/rerank", body) for _ in range(2)]
    assert replies[0].json["results"] == replies[1].json["results"]
    with urllib.request.urlopen(f"http://{service.server.metrics_address}/metrics") as page:
        lines = page.read().decode().splitlines()
    assert f'rerank_text_vectors_total{{result="hit"}} {len(TEXTS)}.0' in lines
    assert f'rerank_text_vectors_total{{result="miss"}} {len(TEXTS)}.0' in lines


@pytest.mark.parametrize("model", ["pe-rank", "fusion"])
async def test_tokens_are_those_of_the_texts_cached_or_not(checkpoint: Path, encoder: Encoder, model: str) -> None:
    cached = with_cache(encoder, 1_000_000)
    settings = FusionModel(name="fusion", ranker="fusion", sparse_weight=0.0)
    rankers = {"pe-rank": PERankRanker(checkpoint, cached, "cpu"), "fusion": FusionRanker(settings, cached, None)}
    texts = [*TEXTS[:4], TEXTS[0], "", "long " * 300]
    async with reranker_of(cached, rankers) as reranker:
        cold, warm, half = [
            (await reranker.rerank(QUERY, some, RankOptions(model=model))).trace.tokens
            for some in (texts[:5], texts[:5], texts)
        ]
        assert cached.vector_cache.hits >= 5
    async with reranker_of(with_cache(encoder, 0), rankers) as reranker:
        uncached = (await reranker.rerank(QUERY, texts, RankOptions(model=model))).trace.tokens
    assert cold == warm > 0
    assert half == uncached > cold


async def test_known_vectors_are_not_expected_work(
    checkpoint: Path, encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = list[int]()

    def acquired(usage: CallUsage, kind: Shared, amount: int, retry_s: object) -> AbstractContextManager[None]:
        expected.append(amount)
        return nullcontext()

    async with make_reranker(checkpoint, with_cache(encoder, 1_000_000)) as reranker:
        monkeypatch.setattr(reranker.engine.accounts, "acquired", acquired)
        for _ in range(2):
            await reranker.rerank(QUERY, TEXTS, RankOptions())
    new, known = expected
    assert known < new - 10 * len(TEXTS)
