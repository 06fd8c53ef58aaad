"""Rerank APIs as rankers, over real sockets: our own port as all its APIs, faults and limits."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import ValidationError

from rerank.config import ApiModel, EngineConfig, RerankServerSettings
from rerank.engine.engine import Engine
from rerank.engine.request import Request
from rerank.engine.strategies import RankStage, Single, Sliding, Strategy
from rerank.errors import ConfigError, ModelServerUnavailable, ModelServerUnfit
from rerank.inference_servers.rerank_apis import RERANK_APIS
from rerank.reranking.load_models import load_remote
from rerank.types import Passage, Query, Ranking, ScoreKind
from tests.fakes import NumberRanker, number_in
from tests.rerank.inference_servers.stand_in import Reply, StandIn, stand_in

if TYPE_CHECKING:
    from tests.http_client import HttpClient

KEY = "secret-of-the-endpoint"
#: The kinds whose requests our own HTTP port understands, and whose answers it gives.
KINDS_OF_OUR_PORT = ("vllm", "vllm-score", "llama-cpp", "infinity", "tei", "cohere", "jina")
Handler = Callable[[str, Any], Reply | None]


def numbers(path: str, body: Any) -> Reply:
    """A server whose score of a passage is a hundredth of the number in its text, in the form of `jina`."""
    texts = body["documents"] if body else []
    return Reply(200, {"results": [{"index": i, "relevance_score": number_in(t) / 100} for i, t in enumerate(texts)]})


def model_at(server: str, **settings: Any) -> ApiModel:
    servers = {"kind": "vllm", "url": server, "model": "bge"} | settings
    return ApiModel(name="bge", ranker="api", served_by=RerankServerSettings.model_validate(servers))


def request_of(values: Sequence[int], strategy: Strategy | None = None, **step: Any) -> Request:
    candidates = tuple(Passage(f"d{value}", f"passage {value}") for value in values)
    return Request(Query("q"), candidates, (RankStage("bge", strategy or Single(1000), **step),))


def order(ranking: Ranking) -> list[int]:
    return [int(result.passage.doc_id[1:]) for result in ranking.ranked]


@pytest.fixture(scope="module")
def http() -> Iterator[HttpClient]:
    """The HTTP port of a service that ranks by the number in each passage."""
    from tests.serving import http_service

    with http_service({"number": NumberRanker()}) as served:
        yield served.http


@asynccontextmanager
async def engine_over(*models: ApiModel, **others: Any) -> AsyncIterator[Engine]:
    rankers = {"bge": load_remote(models[0]), **others}
    async with Engine(rankers, EngineConfig()) as engine:
        yield engine


@asynccontextmanager
async def server_of(handler: Handler) -> AsyncIterator[StandIn]:
    async with stand_in({}) as server:
        server.fault = handler
        yield server


@pytest.mark.parametrize("kind", KINDS_OF_OUR_PORT, ids=[f"kind {name}" for name in KINDS_OF_OUR_PORT])
async def test_our_own_port_is_served_by_as_all_its_apis(http, kind):
    values = [3, 1, 4, 2, 6, 5]
    async with engine_over(model_at(f"http://{http.address}", kind=kind, model="number")) as engine:
        ranking = await engine.run(request_of(values))
    assert order(ranking) == [6, 5, 4, 3, 2, 1]
    is_logit = kind == "llama-cpp"
    assert ranking.score_kind is (ScoreKind.POINTWISE if is_logit else ScoreKind.POINTWISE_PROBABILITY)
    assert ranking.ranked[0].score == 1.0


async def test_wrong_model_name_shows_before_the_first_request(http):
    ranker = load_remote(model_at(f"http://{http.address}", model="nubmer"))
    await ranker.open()
    await ranker.close()
    assert "nubmer" in ranker.problem
    assert "number" in ranker.problem


@pytest.fixture
def most_passages(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets the most passages of a call."""

    def set_to(number: int) -> None:
        monkeypatch.setitem(RERANK_APIS, "vllm", replace(RERANK_APIS["vllm"], max_passages=number))

    return set_to


async def test_window_is_divided_among_calls_of_a_pointwise_api(most_passages):
    most_passages(7)
    async with server_of(numbers) as server:
        async with engine_over(model_at(server.url)) as engine:
            server.requests.clear()
            ranking = await engine.run(request_of(range(50)))
        assert order(ranking) == list(range(49, -1, -1))
        sizes = [len(body["documents"]) for path, body in server.requests if path == "/v1/rerank"]
        assert sorted(sizes) == [1] + [7] * 7


async def test_calls_of_one_window_are_bounded(most_passages):
    most_passages(1)

    def slow(path: str, body: Any) -> Reply:
        return replace(numbers(path, body), delay_s=0.02)

    async with server_of(slow) as server:
        async with engine_over(model_at(server.url, max_in_flight=3)) as engine:
            assert order(await engine.run(request_of(range(20))))[0] == 19
        assert server.most_running == 3


async def test_listwise_api_slides_over_many_candidates_and_never_reads_more_than_its_limit():
    assert model_at("http://127.0.0.1:1", scores="listwise").strategy == "sliding"
    values = [n * 37 % 101 for n in range(101)]
    async with server_of(numbers) as server:
        async with engine_over(model_at(server.url, scores="listwise").model_copy(update={"window_size": 8})) as engine:
            ranking = await engine.run(request_of(values, Sliding(8, 4)))
        assert order(ranking)[:4] == [100, 99, 98, 97]
        assert max(len(body["documents"]) for _, body in server.requests if body) == 8


async def test_instruction_is_sent_to_a_model_that_reads_one():
    async with server_of(numbers) as server:
        async with engine_over(model_at(server.url, instruction=True)) as engine:
            await engine.run(replace(request_of([1, 2]), query=Query("q", instruction="cite law")))
        assert server.requests[-1][1]["instruction"] == "cite law"


WRONG: dict[str, tuple[Reply, type[Exception], str]] = {
    "HTML": (Reply(200, b"<!doctype html><title>Welcome</title>"), ModelServerUnavailable, "not JSON.*<!doctype"),
    "empty": (Reply(200, b""), ModelServerUnavailable, "not JSON"),
    "redirect": (Reply(307, b"", {"location": "http://elsewhere"}), ModelServerUnfit, "answered 307"),
    "key": (Reply(401, {"error": f"invalid key {KEY}"}), ModelServerUnfit, r"answered 401: .*\(the API key\)"),
    "deep": (Reply(200, b"[" * 200_000), ModelServerUnavailable, "not JSON"),
    "twice": (
        Reply(200, {"results": [{"index": 0, "relevance_score": 1}] * 2}),
        ModelServerUnfit,
        "index 0 among the results of 2 passages.*correct served_by.kind",
    ),
    "NaN": (
        Reply(200, b'{"results": [{"index": 0, "relevance_score": NaN}, {"index": 1, "relevance_score": 1}]}'),
        ModelServerUnfit,
        "score nan, which is not a finite number",
    ),
}


@pytest.mark.parametrize(("reply", "error", "text"), WRONG.values(), ids=WRONG)
async def test_wrong_answer_is_an_error_that_says_what_came(reply, error, text, caplog, monkeypatch):
    """At the check of the server, and later in a request."""
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("ENDPOINT_KEY", KEY)
    async with server_of(numbers) as server:
        model = model_at(server.url, api_key_env="ENDPOINT_KEY")
        async with engine_over(model) as engine:
            assert server.headers["authorization"] == f"Bearer {KEY}"
            server.fault = lambda path, body: reply if body else numbers(path, body)
            with pytest.raises(error, match=text) as caught:
                await engine.run(request_of([1, 2]))
        ranker = load_remote(model)
        await ranker.open()
        assert ranker.problem
        await ranker.close()
    assert KEY not in str(caught.value) + ranker.problem + caplog.text


def test_missing_variable_of_the_key_is_named(monkeypatch):
    monkeypatch.delenv("ENDPOINT_KEY", raising=False)
    with pytest.raises(ConfigError, match="environment variable ENDPOINT_KEY, which is not set; set it"):
        load_remote(model_at("http://127.0.0.1:1", api_key_env="ENDPOINT_KEY"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "voyage"}, "'llama-cpp', 'tei', 'infinity', 'cohere' or 'jina'"),
        ({"url": "gpu1:8000"}, "write it as http://HOST:PORT"),
        ({"url": "http://gpu1:99999"}, "write it as http://HOST:PORT"),
        ({"url": "https://me:word@gpu1"}, "the URL has a password in it, which logs would show; use api_key_env"),
        ({"scores": "pairwise"}, "'pointwise' or 'listwise'"),
        ({"fields": {"top_n": 3}}, "fields has top_n, which each call fills in itself"),
        ({"fields": {"documents": "x"}}, "fields has documents"),
        ({"kind": "tei", "instruction": True}, "the API of tei has no field for an instruction"),
    ],
)
def test_settings_that_no_api_can_have_are_refused(settings, message):
    with pytest.raises(ValidationError, match=message):
        model_at("http://gpu1", **settings)
