"""Credentials of a client: TLS, a client certificate, an API key; and channels that use them."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from rerank.access.tls import check_authority, check_pair
from rerank.errors import ConfigError, UsageError
from rerank.util.header_values import check_header_value
from rerank.util.proxies import channel_options

#: The value of `tls_ca` for the public certificate authorities, which gRPC knows.
SYSTEM_CA = "system"
_OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),  # the service enforces a limit and names it
    ("grpc.max_reconnect_backoff_ms", 2000),  # two minutes by default, although the service may have started meanwhile
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """TLS files and API key of a client. By default plain text without a key.

    Attributes:
        tls_ca: PEM file of the certificate authority that signed the service's certificate, or "system" for the public
            ones; None is plain text.
        tls_certificate: PEM file of the client's own certificate chain, for a service that has `tls.client_ca`.
        tls_key: PEM file of its private key.
        api_key: an API key of the service. Without TLS, everyone on the way can read it.
    """

    tls_ca: str | None = None
    tls_certificate: str | None = None
    tls_key: str | None = None
    api_key: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Raises: ConfigError if the key cannot be sent."""
        check_header_value("the API key (RERANK_API_KEY)", self.api_key or "")

    @classmethod
    def from_environment(cls, tls_ca: str | None = None) -> Credentials:
        """Credentials from the variables RERANK_TLS_CA, RERANK_TLS_CERTIFICATE, RERANK_TLS_KEY and RERANK_API_KEY.

        Args:
            tls_ca: replaces RERANK_TLS_CA, unless it is None.

        Raises: ConfigError if the key cannot be sent.
        """
        names = ("tls_ca", "tls_certificate", "tls_key", "api_key")
        given = {name: os.environ.get(f"RERANK_{name.upper()}") or None for name in names}
        return cls(**given | ({"tls_ca": tls_ca} if tls_ca else {}))

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Metadata of each call: the API key, if there is one."""
        return (("authorization", f"Bearer {self.api_key}"),) if self.api_key else ()

    def channel(self, target: str) -> grpc.Channel:
        """A channel for blocking calls. Raises: ConfigError if a file is not given, or cannot be used."""
        tls = self._tls()
        if tls is None:
            return grpc.insecure_channel(target, options=_OPTIONS + channel_options(target))
        return grpc.secure_channel(target, tls, options=_OPTIONS + channel_options(target))

    def aio_channel(self, target: str) -> grpc.aio.Channel:
        """A channel for asyncio. Raises: see `channel`; UsageError outside an event loop."""
        tls = self._tls()
        try:
            asyncio.get_running_loop()
        except RuntimeError as error:
            raise UsageError(
                "AsyncRerankClient needs a running event loop; make it in a coroutine that asyncio.run() runs, as in "
                "`async with AsyncRerankClient(target) as client:`, or use RerankClient"
            ) from error
        if tls is None:
            return grpc.aio.insecure_channel(target, options=_OPTIONS + channel_options(target))
        return grpc.aio.secure_channel(target, tls, options=_OPTIONS + channel_options(target))

    def _tls(self) -> grpc.ChannelCredentials | None:
        if (self.tls_certificate is None) is not (self.tls_key is None):
            raise ConfigError("a client's certificate needs its private key and the reverse; give both or none")
        if self.tls_ca is None:
            if self.tls_certificate is not None:
                raise ConfigError(f'a client\'s certificate needs TLS; give tls_ca, a PEM file or "{SYSTEM_CA}"')
            return None
        pair: list[bytes | None] = [None, None]
        if self.tls_certificate is not None and self.tls_key is not None:
            check_pair(Path(self.tls_certificate), Path(self.tls_key))
            pair = [Path(self.tls_key).read_bytes(), Path(self.tls_certificate).read_bytes()]
        if self.tls_ca == SYSTEM_CA:
            return grpc.ssl_channel_credentials(None, *pair)
        check_authority(Path(self.tls_ca))
        return grpc.ssl_channel_credentials(Path(self.tls_ca).read_bytes(), *pair)


#: Plain text without a key, as a service on the same machine takes it by default.
PLAIN = Credentials()
