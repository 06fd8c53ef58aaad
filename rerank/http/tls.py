"""TLS of the HTTP port, with the same files as gRPC, which are read again when they change."""

from __future__ import annotations

import logging
import ssl

from rerank.access.certificates import check_certificates
from rerank.config.network import TLSConfig
from rerank.errors import ConfigError
from rerank.files import file_version

log = logging.getLogger(__name__)


def server_context(tls: TLSConfig) -> ssl.SSLContext:
    """A context that uses the files as they are when a client connects.

    Files that have become unusable change nothing: an error is logged once.

    Raises:
        ConfigError: a file cannot be used.
    """
    version, current = _version(tls), _read(tls)

    def choose(connection: ssl.SSLObject | ssl.SSLSocket, name: str | None, context: ssl.SSLContext) -> None:
        nonlocal version, current
        if (found := _version(tls)) != version:
            version = found
            try:
                current = _read(tls)
                log.info("certificate read again from %s", tls.certificate)
            except ConfigError as error:
                log.error("%s; the certificate that was read before stays in use", error)
        connection.context = current

    context = _read(tls)
    context.sni_callback = choose
    return context


def _read(tls: TLSConfig) -> ssl.SSLContext:
    check_certificates(tls)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tls.certificate, tls.key)
    if tls.client_ca is not None:
        context.load_verify_locations(tls.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _version(tls: TLSConfig) -> list[tuple[int, ...]]:
    return [file_version(path) for path in (tls.certificate, tls.key, tls.client_ca) if path]
