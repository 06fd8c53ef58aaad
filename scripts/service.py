"""The service as a process of its own, for trials and benchmarks: its log, its metrics and what it takes."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import trustme
import yaml
from prometheus_client.parser import text_string_to_metric_families

#: What a service has unless its settings say otherwise.
_DEFAULTS: dict[str, object] = {
    "listen": "127.0.0.1:0",
    "http": "127.0.0.1:0",
    "telemetry": {"metrics": "127.0.0.1:0"},
}
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
    def statistics(self) -> psutil.Process:
        """Memory, processor time, threads and files of the process."""
        return psutil.Process(self.process.pid)

    def resident_mb(self) -> float:
        """The resident memory of the process."""
        return float(self.statistics.memory_info().rss) / 1e6

    def cpu_s(self) -> float:
        """The processor time of the process so far, in seconds."""
        times = self.statistics.cpu_times()
        return float(times.user + times.system)

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


async def connect(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A TCP connection to HOST:PORT."""
    host, _, port = address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


def free_port() -> int:
    """A port of the loopback that was free just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running_service(
    settings: Mapping[str, object] | None = None,
    encrypted: bool = False,
    program: Sequence[str] = ("-m", "rerank.commands.cli"),
) -> Iterator[Service]:
    """Starts `rerank serve` with these settings, HTTP and metrics on free ports; kills the process afterwards.

    Args:
        settings: of the service.
        encrypted: whether it has TLS, with a new certificate for 127.0.0.1.
        program: arguments of Python that run the command `rerank`.
    """
    with tempfile.TemporaryDirectory(prefix="rerank-trial-") as folder:
        config, log = Path(folder) / "config.yaml", Path(folder) / "serve.log"
        authority = trustme.CA() if encrypted else None
        tls = {"tls": _certificate(authority, Path(folder))} if authority else {}
        config.write_text(yaml.safe_dump(_DEFAULTS | tls | dict(settings or {})), encoding="utf-8")
        with log.open("w", encoding="utf-8") as errors:
            process = subprocess.Popen(
                [sys.executable, *program, "serve", "--config", str(config), "--stop-at-eof"],
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
