"""TLS of the ports: certificate files that are read again when they change, for gRPC and for HTTP."""

from __future__ import annotations

import logging
import ssl
from codecs import BOM_UTF8
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

import grpc

from rerank.config import TLSConfig
from rerank.errors import ConfigError
from rerank.util.files import check_file, file_version

log = logging.getLogger(__name__)

T = TypeVar("T")


def check_certificates(tls: TLSConfig) -> None:
    """Raises: ConfigError if a file cannot be read or has other content, or the key is not the certificate's."""
    check_pair(tls.certificate, tls.key)
    if tls.client_ca is not None:
        check_authority(tls.client_ca)


def check_pair(certificate: Path, key: Path) -> None:
    """Raises: ConfigError if these are not a certificate and its private key."""
    check_pem(certificate)
    check_pem(key)
    try:
        # Without a password, OpenSSL would ask for one.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
    except ssl.SSLError as error:
        way_out = "give PEM files, and the private key of that certificate without a password"
        raise ConfigError(f"tls: {certificate} and {key} cannot be used: {error}; {way_out}") from error


def check_authority(path: Path) -> None:
    """Raises: ConfigError if the file does not hold the certificate of an authority."""
    check_pem(path)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(path)
    except ssl.SSLError as error:
        has_key = b"PRIVATE KEY-----" in path.read_bytes()
        problem = "it is a private key" if has_key else str(error)
        way_out = "give the certificate of the authority, a PEM file"
        raise ConfigError(f"tls: {path} cannot be used: {problem}; {way_out}") from error


def check_pem(path: Path, named_by: str = "tls") -> None:
    """Raises: ConfigError if a file cannot be read, or has a byte order mark, which gRPC cannot read.

    Args:
        named_by: the setting, for errors.
    """
    try:
        check_file(path)
        with path.open("rb") as file:
            begins = file.read(len(BOM_UTF8))
    except ConfigError as error:
        raise ConfigError(f"{named_by}: {error}; give a PEM file") from error
    except OSError as error:
        raise ConfigError(f"{named_by}: {path} cannot be read: {error.strerror}; give a PEM file") from error
    if begins == BOM_UTF8:
        raise ConfigError(f"{named_by}: {path} begins with a byte order mark, at which gRPC ends; save it without one")


def server_credentials(tls: TLSConfig) -> grpc.ServerCredentials:
    """Credentials of a gRPC server, which reads changed files when a client connects.

    Raises: see `check_certificates`.
    """
    files = _CertificateFiles(tls, _grpc_certificates)

    def changed() -> Any:  # None keeps the certificate, which the stubs do not know
        return files.current if files.changed() else None

    return grpc.dynamic_ssl_server_credentials(files.current, changed, tls.client_ca is not None)


def server_context(tls: TLSConfig) -> ssl.SSLContext:
    """An SSL context, which reads changed files when a client connects. Raises: see `check_certificates`."""
    files = _CertificateFiles(tls, _ssl_context)

    def choose(connection: ssl.SSLObject | ssl.SSLSocket, name: str | None, context: ssl.SSLContext) -> None:
        files.changed()
        connection.context = files.current

    context = _ssl_context(tls)
    context.sni_callback = choose
    return context


class _CertificateFiles(Generic[T]):
    """Certificate files that are read again when they change. If new files cannot be used, the last ones stay in use,
    and an error is logged once.

    Args:
        tls: the settings that name the files.
        read: reads the files into an object.

    Attributes:
        current: the object that was read last.
    """

    def __init__(self, tls: TLSConfig, read: Callable[[TLSConfig], T]) -> None:
        self._tls, self._read = tls, read
        self._version = self._current_version()
        check_certificates(tls)
        self.current = read(tls)

    def changed(self) -> bool:
        """True if the files were read again. gRPC calls it for each connection, on its threads."""
        if (version := self._current_version()) == self._version:
            return False
        self._version = version
        try:
            check_certificates(self._tls)
            self.current = self._read(self._tls)
        except ConfigError as error:
            log.error("%s; the certificate that was read before stays in use", error)
            return False
        log.info("certificate read again from %s", self._tls.certificate)
        return True

    def _current_version(self) -> list[tuple[int, ...]]:
        return [file_version(path) for path in (self._tls.certificate, self._tls.key, self._tls.client_ca) if path]


def _grpc_certificates(tls: TLSConfig) -> grpc.ServerCertificateConfiguration:
    pair = tls.key.read_bytes(), tls.certificate.read_bytes()
    return grpc.ssl_server_certificate_configuration([pair], tls.client_ca.read_bytes() if tls.client_ca else None)


def _ssl_context(tls: TLSConfig) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tls.certificate, tls.key)
    if tls.client_ca is not None:
        context.load_verify_locations(tls.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context
