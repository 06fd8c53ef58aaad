"""The service under attack or on trial: a process of its own, its memory, files, threads and log, and its metrics."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import trustme
import yaml
from prometheus_client.parser import text_string_to_metric_families

_HTTP_LINE, _METRICS_LINE = "HTTP at ", "metrics at "


@dataclass(frozen=True)
class Service:
    """A running service and its process. `authority` signed its certificate (PEM); None without TLS."""

    address: str
    process: subprocess.Popen[str]
    log: Path
    authority: bytes | None

    @property
    def http_address(self) -> str:
        """HOST:PORT of its HTTP port."""
        return self._logged(_HTTP_LINE).partition("://")[2]

    @property
    def pid(self) -> int:
        return self.process.pid

    def resident_mb(self) -> float:
        """The resident memory of the process."""
        return self._status("VmRSS") / 1000

    def threads(self) -> int:
        return self._status("Threads")

    def open_files(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def log_mb(self) -> float:
        """The size of its log so far."""
        return self.log.stat().st_size / 1e6

    def metric(self, name: str, **labels: str) -> float:
        """The sum of the samples of a metric that have these labels; 0 if there is none."""
        with urllib.request.urlopen(self._logged(_METRICS_LINE), timeout=60) as page:
            families = list(text_string_to_metric_families(page.read().decode()))
        samples = [sample for family in families for sample in family.samples if sample.name == name]
        return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())

    def _logged(self, beginning: str) -> str:
        """The text behind the beginning of a message, in the only line of the log that has it."""
        (line,) = (each for each in self.log.read_text(encoding="utf-8").splitlines() if beginning in each)
        return line.partition(beginning)[2]

    def _status(self, field: str) -> int:
        """The number of a field of /proc/PID/status; memory is in kB."""
        status = Path(f"/proc/{self.pid}/status").read_text(encoding="utf-8")
        (number,) = (line.split()[1] for line in status.splitlines() if line.startswith(f"{field}:"))
        return int(number)


def free_port() -> int:
    """A port of the loopback that was free just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running_service(settings: Mapping[str, object] | None = None, encrypted: bool = False) -> Iterator[Service]:
    """Starts `rerank serve` with these settings, HTTP and metrics on free ports; kills the process afterwards.

    Args:
        settings: of the service.
        encrypted: whether it has TLS, with a new certificate for 127.0.0.1.
    """
    with tempfile.TemporaryDirectory(prefix="rerank-trial-") as folder:
        config, log = Path(folder) / "config.yaml", Path(folder) / "serve.log"
        defaults: dict[str, object] = {
            "listen": "127.0.0.1:0",
            "http": "127.0.0.1:0",
            "telemetry": {"metrics": "127.0.0.1:0"},
        }
        authority = trustme.CA() if encrypted else None
        if authority is not None:
            defaults["tls"] = _certificate(authority, Path(folder))
        config.write_text(yaml.safe_dump(defaults | dict(settings or {})), encoding="utf-8")
        command = [sys.executable, "-c", "from rerank.commands.cli import main; main()", "serve"]
        with log.open("w", encoding="utf-8") as errors:
            process = subprocess.Popen(
                [*command, "--config", str(config), "--stop-at-eof"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        try:
            assert process.stdout is not None
            address = process.stdout.readline().split()[-1]
            yield Service(address, process, log, authority.cert_pem.bytes() if authority else None)
        finally:
            process.kill()
            process.wait()


def _certificate(authority: trustme.CA, folder: Path) -> dict[str, str]:
    """The setting `tls` with files of a new certificate."""
    issued = authority.issue_cert("127.0.0.1")
    certificate, key = folder / "server.pem", folder / "server.key"
    certificate.write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
    issued.private_key_pem.write_to_path(str(key))
    return {"certificate": str(certificate), "key": str(key)}
