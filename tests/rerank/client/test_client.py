"""The blocking and the asyncio client: the same calls, and errors with the message of the service."""

from __future__ import annotations

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
from tests.serving import TIMEOUT_S, Served

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
