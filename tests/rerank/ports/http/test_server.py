"""The HTTP server of a service: addresses, keys and TLS."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path

import pytest

from rerank.access.keys import CallerLimits, add_key
from rerank.config import HttpConfig, load_config
from rerank.models.encoder import Encoder
from tests.certificates import Authority, Files
from tests.http_client import HttpClient, http_service
from tests.serving import TIMEOUT_S

BODY = {"query": "q", "texts": ["a"]}


def test_address_of_the_command_line_keeps_the_other_settings_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "service.yaml"
    path.write_text("http: {listen: '127.0.0.1:1', model_aliases: {vendor: pe-rank}}")
    config = load_config(path, http={"listen": "127.0.0.1:2"})
    assert config.http == HttpConfig(listen="127.0.0.1:2", model_aliases={"vendor": "pe-rank"})
    path.write_text("http: 127.0.0.1:1")  # a text is the address
    assert load_config(path, http={}).http == HttpConfig(listen="127.0.0.1:1")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8080", 200),
        ("[::1]:1", 200),
        ("10.4.0.17:8080", 200),
        ("evil.example", 400),
        ("LOCALHOST", 200),
        ("evil.example@localhost", 400),
        ("", 400),
    ],
)
def test_without_keys_other_host_names_are_refused(http: HttpClient, host: str, status: int) -> None:
    """A page of evil.example, whose name was made to point at 127.0.0.1, would be of the same origin.

    A browser sends an address only to a page that was read from this address.
    """
    reply = http.send("GET", "/health", headers={"host": host})
    assert reply.status == status
    if status == 400:
        assert reply.json.keys() >= {"message", "detail", "error", "error_type", "code"}
        told = f"the host {host!r}" if host else "the header Host, which is missing,"
        names = "is neither an IP address nor one of the names that this port answers to (localhost)"
        assert reply.json["message"].startswith(f"{told} {names}; use one of these")


def test_host_names_of_the_settings_are_answered_without_keys(encoder: Encoder) -> None:
    """As a container calls its host."""
    allowed = HttpConfig(listen="127.0.0.1:0", allowed_hosts=("host.docker.internal",))
    with http_service(encoder, http=allowed) as (_, client):
        for host, status in (("Host.Docker.Internal:8081", 200), ("localhost", 200), ("evil.example", 400)):
            reply = client.send("GET", "/health", headers={"host": host})
            assert reply.status == status
    assert reply.json["message"].endswith("have the service started with --allowed-host NAME")
    assert "(host.docker.internal, localhost)" in reply.json["message"]


def test_insecure_service_and_one_of_client_certificates_answer_to_every_host_name(
    encoder: Encoder, tmp_path: Path
) -> None:
    """A page of another host, which has no certificate of this authority, cannot reach the latter."""
    with http_service(encoder, insecure=True) as (_, client):
        assert client.send("GET", "/health", headers={"host": "search.example"}).status == 200
    authority = Authority(tmp_path / "authority")
    files = authority.issue("server")
    tls = {"certificate": files.certificate, "key": files.key, "client_ca": authority.certificate}
    with http_service(encoder, tls=tls) as (_, client):
        assert ask(client, authority, authority.issue("client"), "search.example") == 200
        with pytest.raises(OSError, match=r"certificate required|closed|reset|EOF"):
            ask(client, authority, None, "search.example")


def test_host_is_answered_at_all_its_addresses(encoder: Encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """`localhost` was one family's address, and a client that took the other's got no answer."""
    resolved = socket.getaddrinfo
    two = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"127.0.0.{number}", 0)) for number in (1, 1, 2)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *a, **k: two if host == "both" else resolved(host, *a, **k))
    http = HttpConfig(listen="both:0")
    with http_service(encoder, http=http, insecure=True) as (_, client):
        for host in ("127.0.0.1", "127.0.0.2"):
            assert HttpClient(f"{host}:{client.host_and_port[1]}").get("/health").status == 200


@pytest.mark.parametrize("path", ["/rerank/", "//rerank", "//rerank//", "http://localhost/rerank"])
def test_path_with_further_slashes_is_answered_and_not_redirected(http: HttpClient, path: str) -> None:
    reply = http.post(path, BODY)
    assert (reply.status, reply.json[0]["index"]) == (200, 0)
    assert http.get("/v1//models/").json["object"] == "list"


@pytest.fixture(scope="module")
def guarded(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[HttpClient, str]]:
    """A service with a key, and the key."""
    keys = tmp_path_factory.mktemp("keys") / "keys.yaml"
    key = add_key(keys, "a", CallerLimits())
    with http_service(encoder, keys=keys) as (_, client):
        yield client, key


@pytest.mark.parametrize("path", ["/inspector/static", "/nowhere/", "//evil.example/", "/v1/rerank/"])
def test_nothing_is_redirected_without_a_key_either(guarded: tuple[HttpClient, str], path: str) -> None:
    for method in ("GET", "POST"):
        reply = guarded[0].send(method, path, b"{}", {"host": "evil.example", "content-type": "application/json"})
        assert (reply.status // 100, "location" in reply.headers) == (4, False)


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("authorization", "Bearer KEY"),
        ("authorization", "bearer KEY"),
        ("authorization", "BEARER KEY"),
        ("api_key", "KEY"),
        ("x_api_key", "KEY"),
        ("authorization", "KEY"),
    ],
)
def test_key_is_taken_in_the_headers_of_all_clients(guarded: tuple[HttpClient, str], header: str, value: str) -> None:
    """Pinecone sends Api-Key, LiteLLM writes bearer, Cohere's older client BEARER, and LlamaIndex's for TEI the key."""
    client, key = guarded
    for sent, status in ((key, 200), ("wrong", 401)):
        reply = client.post("/v1/rerank", {"query": "q", "documents": ["a"]}, **{header: value.replace("KEY", sent)})
        assert reply.status == status
    assert reply.headers["www-authenticate"] == "Bearer"


def test_without_a_key_only_the_health_is_told(guarded: tuple[HttpClient, str]) -> None:
    client, _ = guarded
    told = [client.get(path).status for path in ("/v1/models", "/info", "/openapi.json", "/health")]
    assert told == [401, 401, 401, 200]
    refused = client.post("/rerank", BODY)
    assert (refused.status, refused.json["error_type"]) == (401, "Validation")


def test_tls_uses_the_files_of_grpc_as_they_are_when_a_client_connects(encoder: Encoder, tmp_path: Path) -> None:
    old, new = Authority(tmp_path / "old"), Authority(tmp_path / "new")
    files = old.issue("server")
    tls = {"certificate": files.certificate, "key": files.key}
    with http_service(encoder, tls=tls) as (_, client):
        assert ask(client, old) == 200
        with pytest.raises(ssl.SSLCertVerificationError):
            ask(client, new)
        replacement = new.issue("server")
        files.key.write_bytes(replacement.key.read_bytes())
        files.certificate.write_bytes(replacement.certificate.read_bytes())
        assert ask(client, new) == 200


def ask(client: HttpClient, authority: Authority, own: Files | None = None, host: str = "localhost") -> int:
    """The status of a request over TLS, on a new connection."""
    context = ssl.create_default_context(cafile=str(authority.certificate))
    if own is not None:
        context.load_cert_chain(own.certificate, own.key)
    connection: HTTPConnection = HTTPSConnection(*client.host_and_port, timeout=TIMEOUT_S, context=context)
    headers = {"content-type": "application/json", "host": host}
    try:
        connection.request("POST", "/rerank", json.dumps(BODY).encode(), headers)
        return connection.getresponse().status
    finally:
        connection.close()
