"""A service with API keys, over gRPC: who is refused, what stays open, and the limits of each key."""

from __future__ import annotations

import io
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from rerank.access.callers import CallerLimits
from rerank.access.key_file import add_key
from rerank.client import Credentials, RerankClient, ServiceError
from rerank.grpc.health import SERVICE
from rerank.models.encoder import Encoder
from rerank.rankers.base import Ranker
from rerank.rankers.identity import IdentityRanker
from rerank.registry import ModelRegistry
from rerank.reranker import AsyncReranker
from rerank.telemetry.logs import JsonFormatter
from rerank.v1 import rerank_pb2 as pb
from rerank.v1.rerank_pb2_grpc import RerankServiceStub
from tests.fakes import HeldRanker, NumberRanker
from tests.serving import TIMEOUT_S, Refusal, Served, config_for, numbered_candidates, refusal, reranker_of, serving

UNAUTHENTICATED, DENIED = grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
REQUEST = pb.RerankRequest(query="q", candidates=numbered_candidates([1, 2]))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.yaml"


@contextmanager
def keyed_service(
    encoder: Encoder, path: Path, rankers: dict[str, Ranker] | None = None, **settings: Any
) -> Iterator[tuple[Served, RerankServiceStub]]:
    rankers = rankers or {"number": NumberRanker(), "identity": IdentityRanker()}
    config = config_for(rankers, keys=path, **settings)
    reranker = AsyncReranker(config, encoder, None, ModelRegistry(config.models, rankers))
    with serving(reranker) as served, grpc.insecure_channel(served.address) as channel:
        yield served, RerankServiceStub(channel)


def bearer(key: str) -> tuple[tuple[str, str], ...]:
    return Credentials(api_key=key).metadata


def refused(stub: RerankServiceStub, metadata: Any, request: pb.RerankRequest = REQUEST) -> Refusal:
    return refusal(lambda: stub.Rerank(request, timeout=TIMEOUT_S, metadata=metadata))


def test_calls_without_a_valid_key_are_refused_in_every_method(encoder: Encoder, path: Path) -> None:
    key = add_key(path, "frontend", CallerLimits())
    with keyed_service(encoder, path) as (_, stub):
        wrong = [(), bearer("wrong"), (("authorization", key),), bearer(key) * 2, bearer(key[:-1]), bearer(key + "x")]
        for metadata in wrong:
            error = refused(stub, metadata)
            assert (error.code, error.reason) == (UNAUTHENTICATED, "UNAUTHENTICATED")
        calls = [
            lambda: stub.Search(pb.SearchRequest(query="q"), timeout=TIMEOUT_S),
            lambda: stub.ListModels(pb.ListModelsRequest(), timeout=TIMEOUT_S),
        ]
        assert [refusal(call).code for call in calls] == [UNAUTHENTICATED] * 2
        assert len(stub.Rerank(REQUEST, timeout=TIMEOUT_S, metadata=bearer(key)).results) == 2


def test_message_of_a_stranger_is_not_read(encoder: Encoder, path: Path) -> None:
    path.write_text("[]")
    with keyed_service(encoder, path) as (served, _), grpc.insecure_channel(served.address) as channel:
        garbage = channel.unary_unary(f"/{SERVICE}/Rerank")
        assert refusal(lambda: garbage(b"\xff" * 1000, timeout=TIMEOUT_S)).code is UNAUTHENTICATED


@pytest.mark.parametrize("reflection", [None, True])
def test_health_is_open_and_reflection_is_not_unless_asked_for(
    encoder: Encoder, path: Path, reflection: bool | None
) -> None:
    path.write_text("[]")
    with (
        keyed_service(encoder, path, reflection=reflection) as (served, _),
        grpc.insecure_channel(served.address) as channel,
    ):
        check = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
        assert check.status == health_pb2.HealthCheckResponse.SERVING
        database = ProtoReflectionDescriptorDatabase(channel)
        if reflection:
            assert SERVICE in database.get_services()
        else:
            assert refusal(database.get_services).code is grpc.StatusCode.UNIMPLEMENTED


def test_reflection_can_be_off_without_keys(encoder: Encoder) -> None:
    with (
        serving(reranker_of(encoder, {"identity": IdentityRanker()}, reflection=False)) as served,
        grpc.insecure_channel(served.address) as channel,
    ):
        database = ProtoReflectionDescriptorDatabase(channel)
        assert refusal(database.get_services).code is grpc.StatusCode.UNIMPLEMENTED


def test_key_is_held_to_its_models(encoder: Encoder, path: Path) -> None:
    key = add_key(path, "batch", CallerLimits(models=("identity",)))
    with keyed_service(encoder, path) as (_, stub):
        identity = pb.RerankRequest(query="q", candidates=REQUEST.candidates, model="identity")
        assert len(stub.Rerank(identity, timeout=TIMEOUT_S, metadata=bearer(key)).results) == 2
        cascade = pb.RerankRequest(
            query="q",
            candidates=REQUEST.candidates,
            model="identity",
            strategy=pb.Strategy(kind=pb.STRATEGY_KIND_CASCADE, preranker="number"),
        )
        for request in (REQUEST, cascade):  # the first one is for the default model, "number"
            error = refused(stub, bearer(key), request)
            assert (error.code, error.reason) == (DENIED, "PERMISSION_DENIED")
            assert "key batch does not allow model 'number'; name one of: identity" in error.message
        search = pb.SearchRequest(query="q")
        assert refusal(lambda: stub.Search(search, timeout=TIMEOUT_S, metadata=bearer(key))).code is DENIED


def test_path_of_a_model_is_not_a_name(encoder: Encoder, path: Path) -> None:
    key = add_key(path, "a", CallerLimits())
    with keyed_service(encoder, path) as (_, stub):
        for name in ("/etc/passwd", "../checkpoints/first", "org/model", "number\x00", str(path)):
            request = pb.RerankRequest(query="q", candidates=REQUEST.candidates, model=name)
            assert refused(stub, bearer(key), request).code is grpc.StatusCode.NOT_FOUND


def test_calls_and_tokens_of_one_key_are_limited_and_those_of_others_are_not(encoder: Encoder, path: Path) -> None:
    few_calls = add_key(path, "few-calls", CallerLimits(max_calls=1))
    few_tokens = add_key(path, "few-tokens", CallerLimits(max_queue_tokens=100))
    free = add_key(path, "free", CallerLimits())
    ranker = HeldRanker()
    with keyed_service(encoder, path, {"number": ranker}) as (served, stub):
        calls = []
        for key in (few_calls, few_tokens):
            calls.append(stub.Rerank.future(REQUEST, timeout=TIMEOUT_S, metadata=bearer(key)))
            assert ranker.entered.wait(TIMEOUT_S)
        while served.server.calls.number < 2:
            time.sleep(0.01)
        for key, message in ((few_calls, "1 calls of key few-calls are in flight"), (few_tokens, "its limit of 100")):
            many = pb.RerankRequest(query="q", candidates=numbered_candidates(range(50)))
            error = refused(stub, bearer(key), many)
            assert (error.code, error.reason) == (EXHAUSTED, "OVERLOADED")
            assert message in error.message
            assert error.detail(error_details_pb2.RetryInfo).retry_delay.seconds == 1
        calls.append(stub.Rerank.future(REQUEST, timeout=TIMEOUT_S, metadata=bearer(free)))
        ranker.release.set()
        assert all(len(call.result(TIMEOUT_S).results) == 2 for call in calls)
        served.wait_until_idle()
        for key in (few_calls, few_tokens):
            assert len(stub.Rerank(REQUEST, timeout=TIMEOUT_S, metadata=bearer(key)).results) == 2


def test_refused_calls_do_not_count_as_in_flight(encoder: Encoder, path: Path) -> None:
    key = add_key(path, "a", CallerLimits(max_calls=1))
    with keyed_service(encoder, path, limits={"max_calls": 1}) as (served, stub):
        for _ in range(5):
            assert refused(stub, ()).code is UNAUTHENTICATED
            assert len(stub.Rerank(REQUEST, timeout=TIMEOUT_S, metadata=bearer(key)).results) == 2
            served.wait_until_idle()


def test_client_sends_its_key_and_names_the_refusal(encoder: Encoder, path: Path) -> None:
    key = add_key(path, "a", CallerLimits())
    with keyed_service(encoder, path) as (served, _):
        with RerankClient(served.address, Credentials(api_key=key)) as client:
            assert len(client.rerank("q", ["1", "2"], TIMEOUT_S).results) == 2
        with RerankClient(served.address) as client, pytest.raises(ServiceError) as caught:
            client.list_models(TIMEOUT_S)
        assert caught.value.code is UNAUTHENTICATED
        assert "needs an API key; send the header `authorization: Bearer KEY`" in str(caught.value)


def test_log_names_the_key_and_never_shows_it(encoder: Encoder, path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "rerank.calls")
    log, json_lines = logging.getLogger("rerank.calls"), io.StringIO()
    handler = logging.StreamHandler(json_lines)
    handler.setFormatter(JsonFormatter(log_texts=True))
    key = add_key(path, "frontend", CallerLimits())
    log.addHandler(handler)
    try:
        with keyed_service(encoder, path) as (_, stub):
            stub.Rerank(REQUEST, timeout=TIMEOUT_S, metadata=bearer(key))
            refused(stub, bearer("stolen"))
    finally:
        log.removeHandler(handler)
    assert caplog.text.count(" key=frontend ") == 1
    assert json_lines.getvalue().count('"key": "frontend"') == 1
    assert not any(secret in caplog.text + json_lines.getvalue() for secret in (key, "stolen"))
