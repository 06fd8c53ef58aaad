"""Passages that come again to FIRST with block attention: the same answer, a reply that says so, and metrics."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rerank.client import RerankClient
from rerank.config import FirstModel, IdentityModel, ServiceConfig, TelemetryConfig
from rerank.config.http import HttpConfig
from rerank.models.encoder import Encoder
from rerank.reranking.registry import load_models
from rerank.reranking.reranker import AsyncReranker
from rerank.types import RankOptions, StrategyKind
from rerank.v1 import rerank_pb2 as pb
from tests.causal_lms import write_causal_lm
from tests.http_client import HttpClient, serving_http
from tests.serving import Served
from tests.small_tokenizers import byte_level

TEXTS = [" ".join(f"w{(5 * place + word) % 13}" for word in range(1 + 3 * place)) for place in range(8)]


@pytest.fixture(scope="module")
def lm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_causal_lm(tmp_path_factory.mktemp("lm"), "llama", byte_level())


def make_reranker(lm: Path, encoder: Encoder, state_bytes: int) -> AsyncReranker:
    first = FirstModel(name="first", ranker="first", path=lm, template="first_block")
    cascade = first.model_copy(
        update={"name": "cascade", "strategy": StrategyKind.CASCADE, "preranker": "first", "window_size": 3}
    )
    config = ServiceConfig(
        listen="127.0.0.1:0",
        models=(first, cascade, IdentityModel(name="identity", ranker="identity")),
        engine={"passage_state_bytes": state_bytes, "max_batch_tokens": 64},  # type: ignore[arg-type]
        http=HttpConfig(listen="127.0.0.1:0"),
        telemetry=TelemetryConfig(metrics="127.0.0.1:0"),
    )
    models = load_models(config.models, encoder, "cpu", config.engine.passage_state_bytes)
    return AsyncReranker(config, encoder, None, models)


@pytest.fixture
def served(lm: Path, encoder: Encoder) -> Iterator[tuple[Served, HttpClient]]:
    with serving_http(make_reranker(lm, encoder, 10**8)) as opened:
        yield opened


def scores(reply: pb.RerankResponse) -> dict[int, float]:
    return {result.original_position: result.score for result in reply.results}


def test_reply_counts_the_passages_that_came_before(served: tuple[Served, HttpClient]) -> None:
    with RerankClient(served[0].address) as client:
        first = client.rerank("a query", TEXTS[:5])
        again = client.rerank("a query", TEXTS)
        repeated = client.rerank("a query", TEXTS)
        other = client.rerank("quite another query", TEXTS)
        assert client.rerank("a query", TEXTS, model="identity").execution.cached_passages == 0
    assert [reply.execution.cached_passages for reply in (first, again, other)] == [0, 5, 8]
    assert repeated.execution.tokens < again.execution.tokens
    assert scores(repeated) == pytest.approx(scores(again), abs=1e-5)


def test_http_says_the_hits_in_a_header_and_metrics_count_them(served: tuple[Served, HttpClient]) -> None:
    service, http = served
    body = {"model": "first", "query": "a query", "documents": TEXTS}
    replies = [http.post("/v2/rerank", body) for _ in range(2)]
    assert [reply.headers["x-rerank-cached-passages"] for reply in replies] == ["0", "8"]
    with urllib.request.urlopen(f"http://{service.server.metrics_address}/metrics") as page:
        lines = page.read().decode().splitlines()
    counted = {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}
    hits, misses = (
        counted[f'rerank_passage_states_total{{model="first",result="{each}"}}'] for each in ("hit", "miss")
    )
    assert misses == 9, "the eight passages, and the beginning of the prompt"
    assert hits >= 8
    used = next(line for line in lines if line.startswith('rerank_passage_state_bytes{model="first"}'))
    assert 0 < float(used.split()[-1]) <= 10**8


def test_two_callers_at_once_get_the_answers_of_a_service_that_keeps_nothing(
    served: tuple[Served, HttpClient], lm: Path, encoder: Encoder
) -> None:
    queries = ["a query", "quite another query"] * 6
    with serving_http(make_reranker(lm, encoder, 0)) as (plain, _), RerankClient(plain.address) as client:
        expected = {query: scores(client.rerank(query, TEXTS)) for query in queries}

    def ask(query: str) -> dict[int, float]:
        with RerankClient(served[0].address) as caller:
            return scores(caller.rerank(query, TEXTS))

    with ThreadPoolExecutor(2) as callers:
        for query, found in zip(queries, callers.map(ask, queries), strict=True):
            assert found == pytest.approx(expected[query], abs=1e-5)


async def test_each_model_keeps_its_own_states_and_a_cascade_counts_those_of_both(lm: Path, encoder: Encoder) -> None:
    async with make_reranker(lm, encoder, 10**8) as reranker:
        options = RankOptions(model="cascade")
        counts = [(await reranker.rerank("a query", TEXTS, options)).trace.cached_passages for _ in range(2)]
        assert set(reranker.state_caches) == {"first", "cascade"}
    assert counts == [0, len(TEXTS) + 3]


async def test_texts_of_the_self_test_are_not_kept_and_not_counted(lm: Path, encoder: Encoder) -> None:
    caches = make_reranker(lm, encoder, 10**8).state_caches.values()
    assert [(cache.used_bytes, cache.hits, cache.misses) for cache in caches] == [(0, 0, 0)] * 2


async def test_setting_of_no_bytes_keeps_nothing(lm: Path, encoder: Encoder) -> None:
    async with make_reranker(lm, encoder, 0) as reranker:
        counts = [(await reranker.rerank("a query", TEXTS, RankOptions())).trace.cached_passages for _ in range(2)]
        assert [cache.used_bytes for cache in reranker.state_caches.values()] == [0, 0]
    assert counts == [0, 0]
