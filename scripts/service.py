"""The service as a separate process, for attacks and pictures: its addresses, its log and its memory."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import yaml

#: Used unless the settings say otherwise.
_DEFAULTS: dict[str, object] = {"listen": "127.0.0.1:0", "http": "127.0.0.1:0"}
_HTTP_LINE, _METRICS_LINE = "HTTP at ", "metrics at "


@dataclass(frozen=True)
class Service:
    """A running service and its process."""

    address: str
    process: subprocess.Popen[str]
    log: Path

    @property
    def http_address(self) -> str:
        """HOST:PORT of its HTTP port."""
        return self._address(_HTTP_LINE)

    @property
    def metrics_address(self) -> str:
        """HOST:PORT of /metrics."""
        return self._address(_METRICS_LINE).removesuffix("/metrics")

    def _address(self, start: str) -> str:
        (line,) = (line for line in self.log.read_text(encoding="utf-8").splitlines() if start in line)
        return line.partition(start)[2].partition("://")[2]

    def resident_mb(self) -> float:
        """The resident memory of the process."""
        return float(psutil.Process(self.process.pid).memory_info().rss) / 1e6

    def log_mb(self) -> float:
        """The size of its log so far."""
        return self.log.stat().st_size / 1e6


@contextmanager
def running_service(settings: Mapping[str, object], open_files: int | None = None) -> Iterator[Service]:
    """Starts `rerank serve` with these settings, its ports free ones; kills the process afterwards.

    Args:
        settings: the service's.
        open_files: the number of files that it may open; None: as many as this process.
    """
    with tempfile.TemporaryDirectory(prefix="rerank-service-") as folder:
        config, log = Path(folder) / "config.yaml", Path(folder) / "serve.log"
        config.write_text(yaml.safe_dump(_DEFAULTS | dict(settings)), encoding="utf-8")
        limit = f"--nofile={open_files}:{open_files}"
        command = [
            *(["prlimit", limit] if open_files else ()),
            sys.executable,
            "-m",
            "rerank.commands.cli",
            "serve",
            "--config",
            str(config),
            "--stop-at-eof",
        ]
        with log.open("w", encoding="utf-8") as errors:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True)
        try:
            assert process.stdout is not None
            yield Service(process.stdout.readline().split()[-1], process, log)
        finally:
            process.kill()
            process.wait()
