"""TLS of the gRPC port: credentials whose certificate files are read again when they change."""

from __future__ import annotations

import logging
from typing import Any

import grpc

from rerank.access.certificates import check_certificates
from rerank.config.network import TLSConfig
from rerank.errors import ConfigError
from rerank.files import file_version

log = logging.getLogger(__name__)


def server_credentials(tls: TLSConfig) -> grpc.ServerCredentials:
    """Credentials that use the files as they are when a client connects. Raises: see `check_certificates`."""
    files = _CertificateFiles(tls)
    fetch: Any = files.read_if_changed  # None keeps the certificate, which the stubs do not know
    return grpc.dynamic_ssl_server_credentials(files.read(), fetch, tls.client_ca is not None)


class _CertificateFiles:
    """The files of the settings. Files that have become unusable change nothing: an error is logged once."""

    def __init__(self, tls: TLSConfig) -> None:
        self._tls = tls
        self._version: list[tuple[int, ...]] = []

    def read(self) -> grpc.ServerCertificateConfiguration:
        """The certificate, its key and the authorities of clients. Raises: ConfigError."""
        self._version = self._current_version()
        check_certificates(self._tls)
        ca = self._tls.client_ca
        pair = self._tls.key.read_bytes(), self._tls.certificate.read_bytes()
        return grpc.ssl_server_certificate_configuration([pair], None if ca is None else ca.read_bytes())

    def read_if_changed(self) -> grpc.ServerCertificateConfiguration | None:
        """None if the files are as they were, or cannot be used. gRPC calls it for each connection, on its threads."""
        try:
            if self._current_version() == self._version:
                return None
            changed = self.read()
        except ConfigError as error:
            log.error("%s; the certificate that was read before stays in use", error)
            return None
        log.info("certificate read again from %s", self._tls.certificate)
        return changed

    def _current_version(self) -> list[tuple[int, ...]]:
        return [file_version(path) for path in (self._tls.certificate, self._tls.key, self._tls.client_ca) if path]
