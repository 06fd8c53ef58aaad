"""The service as a separate process: its addresses, its log and its memory."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import yaml

#: Used unless the settings say otherwise.
_DEFAULTS: dict[str, object] = {"listen": "127.0.0.1:0", "http": "127.0.0.1:0"}
_LISTENING, _HTTP_LINE, _METRICS_LINE = "listening on ", "HTTP at ", "metrics at "


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
def running_service(
    settings: Mapping[str, object],
    open_files: int | None = None,
    checkout: Path | None = None,
    program: Sequence[str] = ("rerank.commands.cli",),
) -> Iterator[Service]:
    """Starts `rerank serve` with these settings, its ports free ones; kills the process afterwards.

    Args:
        settings: the service's.
        open_files: the number of files that it may open; None: as many as this process.
        checkout: another checkout of the repository, with an environment in .venv; None: this one.
        program: the module that runs `serve`, and what stands in front of `serve`.

    Raises:
        RuntimeError: it did not start; with the end of its log.
    """
    with tempfile.TemporaryDirectory(prefix="rerank-service-") as folder:
        config, log = Path(folder) / "config.yaml", Path(folder) / "serve.log"
        config.write_text(yaml.safe_dump(_DEFAULTS | dict(settings)), encoding="utf-8")
        limit = ["prlimit", f"--nofile={open_files}:{open_files}"] if open_files else []
        python = str(checkout / ".venv/bin/python") if checkout else sys.executable
        command = [*limit, python, "-m", *program, "serve", "--config", str(config), "--stop-at-eof"]
        with log.open("w", encoding="utf-8") as errors:
            process = subprocess.Popen(
                command, cwd=checkout, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        try:
            for line in process.stdout or ():
                if line.startswith(_LISTENING):
                    yield Service(line.removeprefix(_LISTENING).strip(), process, log)
                    return
            raise RuntimeError(f"the service did not start: {log.read_text(encoding='utf-8')[-300:]}")
        finally:
            process.kill()
            process.wait()
