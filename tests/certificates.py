"""Certificates for tests: an authority, and PEM files that it signs."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path

import trustme


@dataclass(frozen=True)
class Files:
    """PEM files of a certificate chain and its private key."""

    certificate: Path
    key: Path

    @property
    def tls(self) -> dict[str, Path]:
        """Settings of a service that has this certificate."""
        return {"certificate": self.certificate, "key": self.key}

    def become(self, other: Files) -> None:
        """Takes the content of other files."""
        self.certificate.write_bytes(other.certificate.read_bytes())
        self.key.write_bytes(other.key.read_bytes())


class Authority:
    """A certificate authority whose files are in a folder."""

    def __init__(self, folder: Path) -> None:
        self._ca = trustme.CA()
        self._folder = folder
        folder.mkdir(exist_ok=True)
        self.certificate = folder / "ca.pem"
        self._ca.cert_pem.write_to_path(str(self.certificate))

    def issue(self, name: str, host: str = "127.0.0.1", expired: bool = False) -> Files:
        """Writes NAME.pem and NAME.key, or replaces them, for a server or client at `host`."""
        end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=-1 if expired else 1)
        issued = self._ca.issue_cert(host, common_name=name, not_before=end - datetime.timedelta(days=2), not_after=end)
        files = Files(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        files.certificate.write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(str(files.key))
        return files
