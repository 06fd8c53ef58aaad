"""Runs the service in a child process for the duration of a `with` block."""

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
from rerank.config.hub_models import download_models
from rerank.errors import CheckpointError, ConfigError

_ANNOUNCEMENT = "listening on "


@contextmanager
def service_process(config: ServiceConfig) -> Iterator[str]:
    """Starts `rerank serve` in a child process, yields its address, and stops it with SIGTERM when the block ends.

    The child also stops when this process ends in any other way, even when it is killed.

    Models on the hub are downloaded by this process, so that the user sees the progress.

    Raises:
        CheckpointError: the service cannot load a model. The message includes the end of the service's log.
        ConfigError: the service did not start for another reason. The message includes the end of its log, too.
    """
    config = download_models(config)
    with tempfile.TemporaryDirectory(prefix="rerank-serve-") as folder:
        settings, log = Path(folder) / "config.yaml", Path(folder) / "serve.log"
        settings.write_text(yaml.safe_dump(config.model_dump(mode="json", exclude_unset=True)), encoding="utf-8")
        with log.open("w", encoding="utf-8") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "rerank.commands.cli", "serve", "--config", str(settings), "--stop-at-eof"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        try:
            yield _wait_for_address(process, log)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=config.drain_s + 30)


def stop_at_eof() -> None:
    """Makes the end of standard input act as SIGTERM: the pipe closes when the parent process dies."""

    def watch_stdin() -> None:
        while os.read(0, 1):  # sys.stdin has a lock, which a daemon thread must not hold when the interpreter exits
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch_stdin, daemon=True).start()


def announce(address: str) -> None:
    """Prints the line with the address; `service_process` waits for it."""
    print(f"{_ANNOUNCEMENT}{address}", flush=True)


def _wait_for_address(process: subprocess.Popen[str], log: Path) -> str:
    for line in process.stdout or ():
        if line.startswith(_ANNOUNCEMENT):
            return line.removeprefix(_ANNOUNCEMENT).strip()
    # The exit code is also 1 after a bug of the service, whose traceback is in the log.
    error = CheckpointError if process.wait() == 1 else ConfigError
    raise error(f"the service did not start:\n{log.read_text(encoding='utf-8')[-2000:]}")
