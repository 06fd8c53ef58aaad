"""Checks of certificate files. It imports no gRPC, because `rerank serve` checks its settings before that."""

from __future__ import annotations

import ssl
from pathlib import Path

from rerank.config import TLSConfig
from rerank.errors import ConfigError
from rerank.util.files import check_file


def check_certificates(tls: TLSConfig) -> None:
    """Raises: ConfigError if a file cannot be read or holds something else, or the certificate has another key."""
    check_pair(tls.certificate, tls.key)
    if tls.client_ca is not None:
        check_authority(tls.client_ca)


def check_pair(certificate: Path, key: Path) -> None:
    """Raises: ConfigError if these are not a certificate and its private key."""
    _check_readable(certificate)
    _check_readable(key)
    try:
        # Without a password, OpenSSL would ask for one.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
    except ssl.SSLError as error:
        way_out = "give PEM files, and the private key of that certificate without a password"
        raise ConfigError(f"tls: {certificate} and {key} cannot be used: {error}; {way_out}") from error


def check_authority(path: Path) -> None:
    """Raises: ConfigError if the file does not hold the certificate of an authority."""
    _check_readable(path)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(path)
    except ssl.SSLError as error:
        has_key = b"PRIVATE KEY-----" in path.read_bytes()
        problem = "it is a private key" if has_key else str(error)
        way_out = "give the certificate of the authority, a PEM file"
        raise ConfigError(f"tls: {path} cannot be used: {problem}; {way_out}") from error


def _check_readable(path: Path) -> None:
    try:
        check_file(path)
        path.open("rb").close()
    except ConfigError as error:
        raise ConfigError(f"tls: {error}; give a PEM file") from error
    except OSError as error:
        raise ConfigError(f"tls: {path} cannot be read: {error.strerror}; give a PEM file") from error
