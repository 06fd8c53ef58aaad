"""Settings of the service's connections: TLS, and how long and how much one connection may do."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from rerank.config.settings import Settings

#: gRPC counts milliseconds, calls and bytes in 32 bits.
Seconds = Annotated[float, Field(gt=0, le=1_000_000, strict=True)]
Count = Annotated[int, Field(gt=0, lt=2**31, strict=True)]


class TLSConfig(Settings):
    """Files of a service that encrypts, in PEM form. They are read again when they change, without a restart.

    Attributes:
        certificate: the certificate chain of the service.
        key: the private key of the certificate, without a password.
        client_ca: certificates of the authorities whose clients may connect; every client then needs a certificate
            (mTLS). Default: none, so that clients need no certificate.
    """

    certificate: Path
    key: Path
    client_ca: Path | None = None


class ConnectionsConfig(Settings):
    """Settings of gRPC connections, and the number of connections of each port; `handshake_s` holds for HTTP, too.

    Attributes:
        max_connections: number of connections at the same time of the gRPC port, and of the HTTP port. For a further
            one, the connection ends that has been silent for longest; if none is silent, the new one is closed. It is
            less where the process may open fewer files. Default: 8,000.
        max_connections_per_address: the part of `max_connections` that one address may have, or an IPv6 network of 64
            bits. A load balancer is one address. Default: 4,000.
        keepalive_s: after this time without data, in seconds, a client is asked whether it is still there; its
            connection ends if it does not reply within the same time. Default: 30.
        handshake_s: time that a new connection has for TLS, also one of the HTTP port, and for the first frames of
            HTTP/2, in seconds. Default: 10.
        max_connection_age_s: age at which a connection is closed after its calls, in seconds, so that clients connect
            anew and a load balancer can send them elsewhere. Default: none.
        max_streams: number of calls at the same time on one connection; further ones wait at the client, or fail with
            UNAVAILABLE. Default: 1,000.
        max_metadata_bytes: size of the metadata (headers) of a call in bytes; calls with more are refused. Default: 16
            KiB.
    """

    max_connections: Count = 8000
    max_connections_per_address: Count = 4000
    keepalive_s: Seconds = 30.0
    handshake_s: Seconds = 10.0
    max_connection_age_s: Seconds | None = None
    max_streams: Count = 1000
    max_metadata_bytes: Count = 16_384
