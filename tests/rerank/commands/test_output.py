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


@pytest.mark.parametrize(
    ("command", "unbuffered"),
    [("print('short')", False), ("print('long' * 100_000)", True), ("console.print('rich')", False)],
)
def test_full_output_is_one_line_and_exit_code_1(command: str, unbuffered: bool) -> None:
    with Path("/dev/full").open("wb") as full:
        assert ended(full, "-c", PRINTS.format(command=command), unbuffered=unbuffered) == (1, FULL)


@pytest.mark.parametrize("command", ["print('short')", "print('long' * 100_000)"])
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
