"""A service in a process of its own, for as long as a `with` block lasts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from rerank.config import ServiceConfig
from rerank.errors import ConfigError

_ANNOUNCEMENT = "listening on "


@contextmanager
def service_process(config: ServiceConfig) -> Iterator[str]:
    """Starts `rerank serve`; gives its address; stops it with SIGTERM. It ends with its parent, however that ends.

    Raises:
        ConfigError: it did not start; the message holds the end of what it printed.
    """
    with tempfile.TemporaryDirectory(prefix="rerank-serve-") as folder:
        settings, log = Path(folder) / "config.yaml", Path(folder) / "serve.log"
        settings.write_text(yaml.safe_dump(config.model_dump(mode="json")), encoding="utf-8")
        with log.open("w", encoding="utf-8") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "rerank.commands.cli", "serve", "--config", str(settings), "--stop-at-eof"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        try:
            yield _address(process, log)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=config.drain_s + 30)


def stop_at_eof() -> None:
    """From now on, the end of standard input has the effect of SIGTERM: a parent that dies closes its pipe."""

    def wait() -> None:
        while os.read(0, 1):  # not sys.stdin, whose lock a thread at exit must not hold
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


def announce(address: str) -> None:
    """Prints the line that `service_process` waits for."""
    print(f"{_ANNOUNCEMENT}{address}", flush=True)


def _address(process: subprocess.Popen[str], log: Path) -> str:
    for line in process.stdout or ():
        if line.startswith(_ANNOUNCEMENT):
            return line.removeprefix(_ANNOUNCEMENT).strip()
    raise ConfigError(f"the service did not start:\n{log.read_text(encoding='utf-8')[-2000:]}")
