"""A service whose model runs in an inference server: statuses and health while that is absent, there and killed."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from rerank.config import ServiceConfig
from rerank.models.encoder import Encoder
from rerank.names import SERVICE
from rerank.reranking.load_models import ModelLoader, load_models
from rerank.reranking.reranker import AsyncReranker
from rerank.v1 import rerank_pb2 as pb
from rerank.v1.rerank_pb2_grpc import RerankServiceStub
from tests.rerank.inference_servers.cases import QUERY, TEXTS, adapter
from tests.rerank.inference_servers.stand_in import VLLM, StandIn, recorded
from tests.serving import TIMEOUT_S, refusal, serving


@pytest.fixture
def server() -> Iterator[tuple[StandIn, asyncio.AbstractEventLoop]]:
    """A stand-in on a loop in another thread, which does not listen yet and has chosen its port."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    stand_in = StandIn(recorded(VLLM))
    for work in (stand_in.start, stand_in.kill):
        asyncio.run_coroutine_threadsafe(work(), loop).result(TIMEOUT_S)
    yield stand_in, loop
    asyncio.run_coroutine_threadsafe(stand_in.kill(), loop).result(TIMEOUT_S)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_service_resumes_by_itself_when_the_server_comes_back(
    server: tuple[StandIn, asyncio.AbstractEventLoop], encoder: Encoder
) -> None:
    stand_in, loop = server
    config = ServiceConfig(listen="127.0.0.1:0", models=(adapter(stand_in.url),))
    reranker = AsyncReranker(config, encoder, None, load_models(config.models, ModelLoader(encoder, "cpu")))
    request = pb.RerankRequest(
        query=QUERY.text, candidates=[pb.Candidate(doc_id=f"d{i}", text=text) for i, text in enumerate(TEXTS)]
    )
    with serving(reranker) as served, grpc.insecure_channel(served.address) as channel:
        stub, health = RerankServiceStub(channel), health_pb2_grpc.HealthStub(channel)

        def wait_for(status: int) -> None:
            end_s = time.monotonic() + TIMEOUT_S
            asked = health_pb2.HealthCheckRequest(service=f"{SERVICE}/zephyr")
            while health.Check(asked).status != status:
                assert time.monotonic() < end_s, f"health has not become {status}"
                time.sleep(0.1)

        def fails() -> None:
            refused = refusal(lambda: stub.Rerank(request, timeout=TIMEOUT_S))
            assert (refused.code, refused.reason) == (grpc.StatusCode.UNAVAILABLE, "MODEL_SERVER_UNAVAILABLE")
            assert stand_in.url in refused.message

        wait_for(health_pb2.HealthCheckResponse.NOT_SERVING)
        fails()
        assert stand_in.url in stub.ListModels(pb.ListModelsRequest()).models[0].problem
        for _ in range(2):
            asyncio.run_coroutine_threadsafe(stand_in.start(), loop).result(TIMEOUT_S)
            wait_for(health_pb2.HealthCheckResponse.SERVING)
            reply = stub.Rerank(request, timeout=TIMEOUT_S)
            assert [result.doc_id for result in reply.results][:3] == ["d3", "d7", "d1"]
            assert reply.execution.model_id == "first"
            asyncio.run_coroutine_threadsafe(stand_in.kill(), loop).result(TIMEOUT_S)
            fails()
            wait_for(health_pb2.HealthCheckResponse.NOT_SERVING)
