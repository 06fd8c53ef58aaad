"""TLS: who is refused, certificates that change while the service runs, and files that cannot be used."""

import re
from contextlib import suppress
from pathlib import Path

import grpc
import pytest

from rerank.access.tls import check_certificates
from rerank.client import Credentials, RerankClient
from rerank.client.client import AsyncRerankClient, check_health
from rerank.config import TLSConfig
from rerank.errors import ConfigError
from rerank.v1 import rerank_pb2 as pb
from rerank.v1.rerank_pb2_grpc import RerankServiceStub
from tests.certificates import Authority, Files
from tests.serving import TIMEOUT_S, Served, refusal, running_service


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


def with_certificate(authority: Authority, own: Files) -> Credentials:
    return Credentials(tls_ca=str(authority.certificate), tls_certificate=str(own.certificate), tls_key=str(own.key))


def ask(served: Served, credentials: Credentials) -> str:
    """The only model of the service, on a new connection, which is tried once. Raises: grpc.RpcError."""
    with credentials.channel(served.address) as channel:
        (model,) = RerankServiceStub(channel).ListModels(pb.ListModelsRequest(), timeout=TIMEOUT_S).models
    return str(model.name)


def assert_refused(served: Served, credentials: Credentials) -> None:
    assert refusal(lambda: ask(served, credentials)).code is grpc.StatusCode.UNAVAILABLE


async def test_client_that_knows_the_authority_is_answered(authority):
    credentials = Credentials(tls_ca=str(authority.certificate))
    with running_service(tls=authority.issue("server").tls) as served:
        assert ask(served, credentials) == "identity"
        assert check_health(served.address, credentials, TIMEOUT_S) == "SERVING"
        async with AsyncRerankClient(served.address, credentials) as client:
            assert (await client.list_models(TIMEOUT_S)).models[0].name == "identity"


def test_plain_text_and_other_authorities_are_refused(authority, tmp_path):
    other = Authority(tmp_path / "other")
    with running_service(tls=authority.issue("server").tls) as served:
        assert_refused(served, Credentials())
        assert_refused(served, Credentials(tls_ca=str(other.certificate)))
        assert_refused(served, Credentials(tls_ca="system"))
        with served.connect() as plain, suppress(ConnectionResetError):
            plain.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9))
            assert plain.recv(1000)[:1] in (b"", b"\x15")  # a TLS alert tells nothing
        assert ask(served, Credentials(tls_ca=str(authority.certificate))) == "identity"


def test_client_without_a_valid_certificate_is_refused(authority, tmp_path):
    stranger = Authority(tmp_path / "stranger").issue("client")
    with running_service(tls=authority.issue("server").tls | {"client_ca": authority.certificate}) as served:
        assert_refused(served, Credentials(tls_ca=str(authority.certificate)))
        assert_refused(served, with_certificate(authority, authority.issue("expired", expired=True)))
        assert_refused(served, with_certificate(authority, stranger))
        assert ask(served, with_certificate(authority, authority.issue("client"))) == "identity"


def test_certificate_is_read_again_when_it_changes(authority, tmp_path, caplog):
    credentials = Credentials(tls_ca=str(authority.certificate))
    files = authority.issue("server", expired=True)
    with running_service(tls=files.tls) as served:
        assert_refused(served, credentials)
        authority.issue("server")
        assert ask(served, credentials) == "identity"
        files.certificate.write_text("not a certificate")
        for _ in range(2):
            assert ask(served, credentials) == "identity"
        assert [record.levelname for record in caplog.records if "stays in use" in record.getMessage()] == ["ERROR"]
        files.become(Authority(tmp_path / "other").issue("server"))
        assert_refused(served, credentials)


def test_unusable_files_are_named(authority, tmp_path):
    good, other = authority.issue("good"), authority.issue("other")
    missing, text = tmp_path / "missing.pem", tmp_path / "text.pem"
    text.write_text("no PEM")
    marked = tmp_path / "marked.pem"
    marked.write_bytes(b"\xef\xbb\xbf" + good.certificate.read_bytes())
    cases = {
        f"{missing} cannot be read: No such file": good.tls | {"certificate": missing},
        f"{good.certificate} and {other.key} cannot be used: .*private key of that cert": good.tls | {"key": other.key},
        f"{text} and {good.key} cannot be used": good.tls | {"certificate": text},
        f"{text} cannot be used": good.tls | {"client_ca": text},
        f"{marked} begins with a byte order mark": good.tls | {"certificate": marked},  # gRPC cannot read it
        f"{tmp_path} cannot be read: it is a folder, not a file": good.tls | {"key": tmp_path},
    }
    for message, tls in cases.items():
        with pytest.raises(ConfigError, match=f"tls: {message}"):
            check_certificates(TLSConfig(**tls))
    check_certificates(TLSConfig(**good.tls, client_ca=authority.certificate))


def test_client_credentials_must_be_complete(authority, tmp_path):
    own = authority.issue("client")
    with pytest.raises(ConfigError, match="needs its private key and the reverse"):
        RerankClient("127.0.0.1:1", Credentials(tls_ca="system", tls_certificate=str(own.certificate)))
    with pytest.raises(ConfigError, match="needs TLS"):
        RerankClient("127.0.0.1:1", Credentials(tls_certificate=str(own.certificate), tls_key=str(own.key)))
    with pytest.raises(ConfigError, match=f"{re.escape(str(tmp_path / 'no.pem'))} cannot be read"):
        AsyncRerankClient("127.0.0.1:1", Credentials(tls_ca=str(tmp_path / "no.pem")))
    with pytest.raises(ConfigError, match=f"{own.key} cannot be used: it is a private key; give the certificate of"):
        RerankClient("127.0.0.1:1", Credentials(tls_ca=str(own.key)))
