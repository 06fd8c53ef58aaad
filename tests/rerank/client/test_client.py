"""The blocking and the asyncio client: the same calls, and errors with the message of the service."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from rerank.access.credentials import Credentials
from rerank.client.client import AsyncRerankClient, RerankClient
from rerank.client.error_details import ServiceError
from rerank.errors import ConfigError, InvalidRequest, UsageError
from rerank.v1 import rerank_pb2 as pb
from tests.conftest import PASSAGES
from tests.rerank.client.either_client import Client
from tests.serving import TIMEOUT_S, Served, free_port

PAIRS = [(doc_id, text) for doc_id, (_, text) in PASSAGES.items()]
QUERY = "how long does a flea live"


@pytest.fixture(params=[RerankClient, AsyncRerankClient])
def client(request: pytest.FixtureRequest, service: Served) -> Client:
    return Client(request.param, service.address)


def test_rerank_takes_pairs_and_messages_in_order(client: Client) -> None:
    messages = [pb.Candidate(doc_id=doc_id, text=text) for doc_id, text in PAIRS[6:]]
    reply = client.call("rerank", QUERY, [*PAIRS[:6], *messages], timeout_s=TIMEOUT_S)
    assert {PAIRS[result.original_position][0]: result.doc_id for result in reply.results} == {
        doc_id: doc_id for doc_id in PASSAGES
    }
    assert reply.results[0].doc_id == "flea"


@pytest.mark.parametrize("name", ["gpt", "žluťoučký\n🦟", " \x00 "])
def test_message_of_the_service_arrives_unchanged(client: Client, name: str) -> None:
    with pytest.raises(ServiceError) as caught:
        client.call("rerank", QUERY, PAIRS, model=name)
    assert repr(name) in str(caught.value)
    assert "pe-rank, identity, number" in str(caught.value)
    assert (caught.value.code, caught.value.reason) == (grpc.StatusCode.NOT_FOUND, "NOT_FOUND")
    assert caught.value.metadata == {"model": name}


def test_unknown_option_is_refused_before_the_call(client: Client) -> None:
    with pytest.raises(InvalidRequest, match="no_such_field: SearchRequest has no such field; fields: query"):
        client.call("search", QUERY, no_such_field=1)
    for method, arguments in {"search": [QUERY], "rerank": [QUERY, PAIRS]}.items():
        with pytest.raises(InvalidRequest, match=r"top_k: .*; did you mean top_n\?"):
            client.call(method, *arguments, top_k=1)


@pytest.mark.parametrize("kind", [RerankClient, AsyncRerankClient])
@pytest.mark.parametrize("target", ["http://127.0.0.1:8080", "https://host/v1", "grpc://h:1", "htp://h:50051"])
def test_url_is_not_a_target(kind: Any, target: str) -> None:
    with pytest.raises(ConfigError, match=r"begins with .*://, but this client speaks gRPC and takes HOST:PORT"):
        kind(target)


async def test_repr_says_target_and_security_without_the_key_and_a_closed_client_what_to_do() -> None:
    with RerankClient("127.0.0.1:1") as client:
        assert repr(client) == "<RerankClient of 127.0.0.1:1: plain text, no API key>"
    assert repr(client).startswith("<closed RerankClient")
    with pytest.raises(UsageError, match="this RerankClient is closed; make a new one"):
        client.list_models()
    async with AsyncRerankClient("h:1", Credentials(tls_ca="system", api_key="secret")) as other:
        assert repr(other) == "<AsyncRerankClient of h:1: TLS, API key>"
    with pytest.raises(UsageError, match="this AsyncRerankClient is closed; make a new one"):
        await other.list_models()


@pytest.mark.parametrize("variable", ["grpc_proxy", "https_proxy", "http_proxy"])
def test_loopback_is_called_directly_and_a_proxy_of_others_is_named(
    client: Client, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, f"http://127.0.0.1:{free_port()}")
    assert client.call("list_models").models
    elsewhere = Client(client.kind, "192.0.2.1:50051", attempts=1)
    with pytest.raises(ServiceError, match=rf"by the proxy of {variable}, unless no_proxy lists 192\.0\.2\.1"):
        elsewhere.call("list_models", timeout_s=5)


@pytest.mark.parametrize("timeout_s", [5e9, 1e10, float("inf"), None])
def test_deadline_that_is_far_away_is_none(client: Client, timeout_s: float | None) -> None:
    assert client.call("rerank", QUERY, PAIRS, timeout_s=timeout_s).results


@pytest.mark.parametrize("timeout_s", ["5", float("nan"), [5]])
def test_deadline_that_is_no_number_is_refused(client: Client, timeout_s: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"timeout_s: .* is not a number of seconds; None is no deadline"):
        client.call("rerank", QUERY, PAIRS, timeout_s=timeout_s)


def test_asyncio_client_is_called_in_a_second_event_loop(service: Served) -> None:
    async def made() -> AsyncRerankClient:
        client = AsyncRerankClient(service.address)
        assert (await client.rerank(QUERY, PAIRS)).results
        return client

    client = asyncio.run(made())
    assert asyncio.run(client.rerank(QUERY, PAIRS)).results
