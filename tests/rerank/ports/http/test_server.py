"""The HTTP server of a service: addresses, keys and TLS."""

import json
import socket
import ssl
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPSConnection

import pytest

from rerank.access.keys import CallerLimits, add_key
from rerank.config import HttpConfig, load_config
from tests.certificates import Authority, Files
from tests.http_client import JSON_TYPE, HttpClient
from tests.serving import HTTP, TIMEOUT_S, http_service

BODY = {"query": "q", "texts": ["a"]}


def test_address_of_the_command_line_keeps_the_other_settings_of_the_file(tmp_path):
    path = tmp_path / "service.yaml"
    path.write_text("http: {listen: '127.0.0.1:1', model_aliases: {vendor: pe-rank}}")
    config = load_config(path, http={"listen": "127.0.0.1:2"})
    assert config.http == HttpConfig(listen="127.0.0.1:2", model_aliases={"vendor": "pe-rank"})
    path.write_text("http: 127.0.0.1:1")  # a text is the address
    assert load_config(path, http={}).http == HttpConfig(listen="127.0.0.1:1")


@pytest.mark.parametrize("host", ["localhost:8080", "[::1]:1", "10.4.0.17:8080", "LOCALHOST"])
def test_without_keys_addresses_and_localhost_are_answered(http, host):
    """A browser sends an address only to a page that was read from this address."""
    assert http.send("GET", "/health", headers={"host": host}).status == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example@localhost", ""])
def test_without_keys_other_host_names_are_refused(http, host):
    """A page of evil.example, whose name was made to point at 127.0.0.1, would be of the same origin."""
    reply = http.send("GET", "/health", headers={"host": host})
    assert reply.status == 400
    assert reply.json.keys() >= {"message", "detail", "error", "error_type", "code"}
    told = f"the host {host!r}" if host else "the header Host, which is missing,"
    names = "is neither an IP address nor one of the names that this port answers to (localhost)"
    assert reply.json["message"].startswith(f"{told} {names}; use one of these")


def test_host_names_of_the_settings_are_answered_without_keys():
    """As a container calls its host."""
    with http_service(http=HTTP | {"allowed_hosts": ["host.docker.internal"]}) as served:
        for host, status in (("Host.Docker.Internal:8081", 200), ("localhost", 200), ("evil.example", 400)):
            reply = served.http.send("GET", "/health", headers={"host": host})
            assert reply.status == status
    assert reply.json["message"].endswith("have the service started with --allowed-host NAME")
    assert "(host.docker.internal, localhost)" in reply.json["message"]


def test_insecure_service_and_one_of_client_certificates_answer_to_every_host_name(tmp_path):
    """A page of another host, which has no certificate of this authority, cannot reach the latter."""
    with http_service(insecure=True) as served:
        assert served.http.send("GET", "/health", headers={"host": "search.example"}).status == 200
    authority = Authority(tmp_path / "authority")
    with http_service(tls=authority.issue("server").tls | {"client_ca": authority.certificate}) as served:
        assert ask(served.http, authority, authority.issue("served.http"), "search.example") == 200
        with pytest.raises(OSError, match=r"certificate required|closed|reset|EOF"):
            ask(served.http, authority, None, "search.example")


def test_host_is_answered_at_all_its_addresses(monkeypatch):
    """`localhost` was one family's address, and a served.http that took the other's got no answer."""
    resolved = socket.getaddrinfo
    two = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"127.0.0.{number}", 0)) for number in (1, 1, 2)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *a, **k: two if host == "both" else resolved(host, *a, **k))
    with http_service(http="both:0", insecure=True) as served:
        for host in ("127.0.0.1", "127.0.0.2"):
            assert HttpClient(f"{host}:{served.http.host_and_port[1]}").get("/health").status == 200


@pytest.mark.parametrize("path", ["/rerank/", "//rerank", "//rerank//", "http://localhost/rerank"])
def test_path_with_further_slashes_is_answered_and_not_redirected(http, path):
    reply = http.post(path, BODY)
    assert (reply.status, reply.json[0]["index"]) == (200, 0)
    assert http.get("/v1//models/").json["object"] == "list"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[HttpClient, str]]:
    """A service with a key, and the key."""
    keys = tmp_path_factory.mktemp("keys") / "keys.yaml"
    key = add_key(keys, "a", CallerLimits())
    with http_service(keys=keys) as served:
        yield served.http, key


@pytest.mark.parametrize("path", ["/inspector/static", "/nowhere/", "//evil.example/", "/v1/rerank/"])
def test_nothing_is_redirected_without_a_key_either(guarded, path):
    for method in ("GET", "POST"):
        reply = guarded[0].send(method, path, b"{}", JSON_TYPE | {"host": "evil.example"})
        assert (reply.status // 100, "location" in reply.headers) == (4, False)


@pytest.mark.parametrize(
    "header",
    [*(f"authorization: {scheme}" for scheme in ("Bearer ", "bearer ", "BEARER ", "")), "api-key: ", "x-api-key: "],
)
def test_key_is_taken_in_the_headers_of_all_clients(guarded, header):
    """Pinecone sends Api-Key, LiteLLM writes bearer, Cohere's older client BEARER, and LlamaIndex's for TEI the key."""
    client, key = guarded
    name, _, before = header.partition(": ")
    for sent, status in ((key, 200), ("wrong", 401)):
        reply = client.post("/v1/rerank", {"query": "q", "documents": ["a"]}, **{name: before + sent})
        assert reply.status == status
    assert reply.headers["www-authenticate"] == "Bearer"


def test_without_a_key_only_the_health_is_told(guarded):
    client, _ = guarded
    told = [client.get(path).status for path in ("/v1/models", "/info", "/openapi.json", "/health")]
    assert told == [401, 401, 401, 200]
    refused = client.post("/rerank", BODY)
    assert (refused.status, refused.json["error_type"]) == (401, "Validation")


def test_tls_uses_the_files_of_grpc_as_they_are_when_a_client_connects(tmp_path):
    old, new = Authority(tmp_path / "old"), Authority(tmp_path / "new")
    files = old.issue("server")
    with http_service(tls=files.tls) as served:
        assert ask(served.http, old) == 200
        with pytest.raises(ssl.SSLCertVerificationError):
            ask(served.http, new)
        files.become(new.issue("server"))
        assert ask(served.http, new) == 200


def ask(client: HttpClient, authority: Authority, own: Files | None = None, host: str = "localhost") -> int:
    """The status of a request over TLS, on a new connection."""
    context = ssl.create_default_context(cafile=str(authority.certificate))
    if own is not None:
        context.load_cert_chain(own.certificate, own.key)
    with closing(HTTPSConnection(*client.host_and_port, timeout=TIMEOUT_S, context=context)) as connection:
        connection.request("POST", "/rerank", json.dumps(BODY).encode(), JSON_TYPE | {"host": host})
        return connection.getresponse().status
