"""Standard output that cannot be written: one line on stderr and an exit code, never a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.serving import TIMEOUT_S

pytestmark = pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")

FULL = "error: standard output cannot be written: No space left on device; send it elsewhere\n"
PRINTS = "from rerank.commands.run import console, run; run(lambda: {command})"
CLI = "from rerank.commands.cli import main; main()"


def ended(stdout: object, *arguments: str, unbuffered: bool = False) -> tuple[int, str]:
    """Exit code and stderr of Python with these arguments."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1" if unbuffered else ""}
    result = subprocess.run(
        [sys.executable, *arguments],
        stdout=stdout,  # type: ignore[call-overload]
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=TIMEOUT_S,
        env=environment,
    )
    return result.returncode, result.stderr


@pytest.mark.parametrize("unbuffered", [False, True])
@pytest.mark.parametrize("command", ["print('short')", "print('long' * 100_000)", "console.print('rich')"])
def test_full_output_is_one_line_and_exit_code_1(command: str, unbuffered: bool) -> None:
    with Path("/dev/full").open("wb") as full:
        assert ended(full, "-c", PRINTS.format(command=command), unbuffered=unbuffered) == (1, FULL)


@pytest.mark.parametrize("command", ["print('short')", "print('long' * 100_000)", "console.print('rich')"])
def test_pipe_without_a_reader_ends_a_command_silently_and_not_with_0(command: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        assert ended(writing, "-c", PRINTS.format(command=command)) == (1, "")
    finally:
        os.close(writing)


def test_output_is_as_it_was_written(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with out.open("wb") as file:
        assert ended(file, "-c", PRINTS.format(command="print('ä\\n' * 50_000, end='')")) == (0, "")
    assert out.read_text(encoding="utf-8") == "ä\n" * 50_000


@pytest.mark.slow
def test_service_that_cannot_announce_its_address_stops_with_one_line(tmp_path: Path) -> None:
    config = tmp_path / "service.yaml"
    config.write_text("listen: 127.0.0.1:0\ndevice: cpu\nmodels: [{name: identity, ranker: identity}]\n")
    with Path("/dev/full").open("wb") as full:
        code, errors = ended(full, "-c", CLI, "serve", "--config", str(config))
    assert code == 1
    assert errors.endswith(FULL)
    assert "Traceback" not in errors
