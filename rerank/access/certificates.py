"""Checks of certificate files. It imports no gRPC, because `rerank serve` checks its settings before that."""

from __future__ import annotations

import ssl

from rerank.config import TLSConfig
from rerank.errors import ConfigError
from rerank.util.files import check_file


def check_certificates(tls: TLSConfig) -> None:
    """Raises: ConfigError if a file cannot be read, holds something else, or the key is not that of the certificate."""
    for path in filter(None, (tls.certificate, tls.key, tls.client_ca)):
        try:
            check_file(path)
            path.open("rb").close()
        except ConfigError as error:
            raise ConfigError(f"tls: {error}; give a PEM file") from error
        except OSError as error:
            raise ConfigError(f"tls: {path} cannot be read: {error.strerror}; give a PEM file") from error
    context, files = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), f"{tls.certificate} and {tls.key}"
    try:
        context.load_cert_chain(tls.certificate, tls.key, password="")  # without one, OpenSSL would ask for it
        if tls.client_ca is not None:
            files = str(tls.client_ca)
            context.load_verify_locations(tls.client_ca)
    except ssl.SSLError as error:
        way_out = "give PEM files, and the private key of that certificate without a password"
        raise ConfigError(f"tls: {files} cannot be used: {error}; {way_out}") from error
