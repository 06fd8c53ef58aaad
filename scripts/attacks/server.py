"""The attacked service: a process of its own with the default models."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Service:
    """A running service and its process."""

    address: str
    pid: int

    def resident_mb(self) -> float:
        """The resident memory of the process."""
        status = Path(f"/proc/{self.pid}/status").read_text(encoding="utf-8")
        (kilobytes,) = (line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:"))
        return int(kilobytes) / 1000


@contextmanager
def running_service() -> Iterator[Service]:
    """Starts `rerank serve` on a free port; ends the process afterwards, without a drain."""
    command = [sys.executable, "-c", "from rerank.commands.cli import main; main()", "serve"]
    process = subprocess.Popen(
        [*command, "--listen", "127.0.0.1:0", "--stop-at-eof"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield Service(process.stdout.readline().split()[-1], process.pid)
    finally:
        process.kill()
        process.wait()
