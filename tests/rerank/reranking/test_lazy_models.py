"""Models that are loaded when they are first asked for, and leave memory when nobody asks for them."""

import asyncio
import gc
import math
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc

from rerank.config import FirstModel, HttpConfig, IdentityModel, ModelConfig, ServiceConfig
from rerank.errors import CheckpointError, InvalidRequest, ModelLoading, NotConfigured
from rerank.models.encoder import Encoder
from rerank.names import SERVICE
from rerank.reranking.load_models import ModelLoader
from rerank.reranking.registry import LoadedModel, load_models
from rerank.reranking.reranker import AsyncReranker
from rerank.types import OnFailure, RankOptions
from rerank.v1 import rerank_pb2 as pb
from rerank.v1.rerank_pb2_grpc import RerankServiceStub
from tests.causal_lms import write_causal_lm
from tests.http_client import HttpClient
from tests.serving import TIMEOUT_S, refusal, serving, wait_for
from tests.small_tokenizers import byte_level

TEXTS = ["glaciers flow", "a flea lives a year", "bread rises"]


@dataclass(frozen=True)
class HeldLoader(ModelLoader):
    """Loads when it is released, and counts its loads."""

    released: threading.Event = field(default_factory=threading.Event)
    loads: list[str] = field(default_factory=list)

    def load(self, model: ModelConfig) -> LoadedModel:
        if model.name == "first":
            self.loads.append(model.name)
            assert self.released.wait(TIMEOUT_S)
        return super().load(model)


@pytest.fixture(scope="module")
def lm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_causal_lm(tmp_path_factory.mktemp("lm") / "tiny", "qwen3", byte_level())


@pytest.fixture
def loader(encoder: Encoder) -> HeldLoader:
    return HeldLoader(encoder, "cpu")


def reranker_of(loader: HeldLoader, path: Path, **settings: Any) -> AsyncReranker:
    models = (
        IdentityModel(name="identity", ranker="identity"),
        FirstModel(name="first", ranker="first", path=path, **{"load": "request"} | settings),
        FirstModel(name="both", ranker="first", path=path, strategy="cascade", preranker="first", window_size=2),
    )
    config = ServiceConfig(models=models, listen="127.0.0.1:0", http=HttpConfig(listen="127.0.0.1:0"), device="cpu")
    return AsyncReranker(config, loader.encoder, None, load_models(models, loader), loader)


@asynccontextmanager
async def opened(reranker: AsyncReranker) -> AsyncIterator[AsyncReranker]:
    async with reranker:
        yield reranker


def is_loaded(reranker: AsyncReranker) -> bool:
    return next(model.is_loaded for model in reranker.models() if model.name == "first")


def soon(seconds: float) -> float:
    return asyncio.get_running_loop().time() + seconds


async def test_first_request_loads_the_model_and_others_wait_for_the_same_load(loader, lm):
    async with opened(reranker_of(loader, lm)) as reranker:
        assert not is_loaded(reranker)
        calls = [asyncio.create_task(reranker.rerank("fleas", TEXTS, RankOptions(model=m))) for m in ("first", "both")]
        await reranker.rerank("fleas", TEXTS, RankOptions(model="identity"))  # which waits for nobody
        loader.released.set()
        first, both = await asyncio.gather(*calls)
        assert len(first.ranked) == len(both.ranked) == 3
        assert loader.loads == ["first"]
        (described,) = (model for model in reranker.models() if model.name == "first")
        assert described.is_loaded
        assert described.load_s > 0
        with pytest.raises(InvalidRequest, match="window_size 500 exceeds"):
            await reranker.rerank("fleas", TEXTS, RankOptions(model="first", window_size=500))


@pytest.mark.parametrize(
    ("candidates", "options"),
    [
        ([7], RankOptions(model="first")),
        (TEXTS, RankOptions(model="first", strategy="sliding", window_size=4, stride=9)),
        (TEXTS, RankOptions(model="first", min_relevance=1.5)),
        (TEXTS, RankOptions(model="both", preranker="nobody")),
    ],
)
async def test_request_that_is_refused_loads_nothing(loader, lm, candidates, options):
    async with opened(reranker_of(loader, lm)) as reranker:
        with pytest.raises(InvalidRequest):
            await reranker.rerank("fleas", candidates, options)
        assert not loader.loads


@pytest.mark.parametrize("feedback", [None, "no-such-method"])
async def test_search_that_is_refused_loads_nothing(loader, lm, feedback):
    """Without an index, or with an unknown method of feedback."""
    async with opened(reranker_of(loader, lm)) as reranker:
        with pytest.raises(NotConfigured if feedback is None else InvalidRequest):
            await reranker.search("fleas", "dense", 3, RankOptions(model="first"), feedback=feedback)
        assert not loader.loads


async def test_call_whose_deadline_comes_first_is_told_to_ask_again(loader, lm):
    async with opened(reranker_of(loader, lm)) as reranker:
        started = time.monotonic()
        with pytest.raises(ModelLoading, match="model 'first' is being loaded; ask again in 5 s"):
            await reranker.rerank("fleas", TEXTS, RankOptions(model="first"), soon(0.5))
        assert time.monotonic() - started < 0.5  # so that the caller still gets it
        instead = RankOptions(model="first", on_failure=OnFailure.FIRST_STAGE)
        ranking = await reranker.rerank("fleas", TEXTS, instead, soon(0.5))
        assert [item.position for item in ranking.ranked] == [0, 1, 2]
        assert ranking.trace.failure is ModelLoading
        loader.released.set()
        assert len((await reranker.rerank("fleas", TEXTS, RankOptions(model="first"))).ranked) == 3
        assert loader.loads == ["first"]


async def test_model_whose_loading_fails_is_marked_and_the_others_go_on(loader, lm, tmp_path):
    (broken := tmp_path / "broken").mkdir()
    (broken / "config.json").write_text("{}")
    loader.released.set()
    async with opened(reranker_of(loader, broken)) as reranker:
        assert [model.problem for model in reranker.models()][:2] == ["", ""]
        for _ in range(2):
            with pytest.raises(CheckpointError, match=r"model 'first' is not served; .*broken"):
                await reranker.rerank("fleas", TEXTS, RankOptions(model="first"))
        assert loader.loads == ["first"]
        assert "broken" in reranker.models()[1].problem
        await reranker.rerank("fleas", TEXTS, RankOptions(model="identity"))


async def wait_until(condition: Callable[[], bool]) -> None:
    await asyncio.to_thread(wait_for, condition)


@pytest.mark.parametrize("load", ["request", "start"])
async def test_idle_model_is_unloaded_and_loaded_again(loader, lm, load):
    loader.released.set()
    async with opened(reranker_of(loader, lm, load=load, unload_after_s=0.5)) as reranker:
        before = await reranker.rerank("fleas", TEXTS, RankOptions(model="first"))
        ranker = weakref.ref(reranker.rankers["first"])
        await wait_until(lambda: not is_loaded(reranker))
        await wait_until(lambda: gc.collect() >= 0 and ranker() is None)
        again = await reranker.rerank("fleas", TEXTS, RankOptions(model="first"))
        assert [item.score for item in again.ranked] == [item.score for item in before.ranked]
        assert loader.loads == ["first", "first"]


async def test_model_in_use_is_not_unloaded(loader, lm):
    loader.released.set()
    async with opened(reranker_of(loader, lm, unload_after_s=0.2)) as reranker:
        await reranker.rerank("fleas", TEXTS, RankOptions(model="first"))
        async with reranker._lazy.ready(RankOptions("first"), "", 0.0, math.inf):
            await asyncio.sleep(0.6)
            assert is_loaded(reranker)


async def test_end_of_the_service_does_not_wait_for_a_load(loader, lm):
    async with opened(reranker_of(loader, lm)) as reranker:
        call = asyncio.create_task(reranker.rerank("fleas", TEXTS, RankOptions(model="first")))
        await wait_until(lambda: loader.loads == ["first"])
        started = time.monotonic()
    assert time.monotonic() - started < 5
    with pytest.raises(ModelLoading):
        await call
    loader.released.set()


def test_service_says_so_on_every_port(loader, lm):
    reranker = reranker_of(loader, lm)
    with serving(reranker) as service, grpc.insecure_channel(service.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        stub, http = RerankServiceStub(channel), HttpClient(service.server.http_address)
        checked = health_pb2.HealthCheckRequest(service=f"{SERVICE}/first")
        assert health.Check(checked, timeout=TIMEOUT_S).status == health_pb2.HealthCheckResponse.SERVING
        request = pb.RerankRequest(query="q", candidates=[pb.Candidate(doc_id="a", text="b")], model="first")
        refused = refusal(lambda: stub.Rerank(request, timeout=0.5))
        assert (refused.code, refused.reason) == (grpc.StatusCode.UNAVAILABLE, "MODEL_LOADING")
        assert refused.detail(error_details_pb2.RetryInfo).retry_delay.seconds == 5
        document = {"query": "q", "documents": ["a"], "model": "first"}
        reply = http.post("/v2/rerank", document, x_request_timeout_ms="500")
        assert (reply.status, reply.headers.get("retry-after")) == (503, "5")
        assert not stub.ListModels(pb.ListModelsRequest()).models[1].is_loaded
        loader.released.set()
        wait_for(lambda: is_loaded(reranker))
        assert len(stub.Rerank(request, timeout=TIMEOUT_S).results) == 1
        listed = stub.ListModels(pb.ListModelsRequest()).models[1]
        assert listed.is_loaded
        assert listed.load_s > 0
