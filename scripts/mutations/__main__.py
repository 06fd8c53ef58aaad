"""Plants changes one at a time in copies of the tree, and runs the tests that must find them.

    python -m scripts.mutations [--only TEXT]... [--jobs NUMBER]

Prints a line for each change; the exit code is 1 if the tests pass with one of them. What the tests import from other
packages is imported once: each run is a fork of a process that has them.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Annotated, NoReturn

import pytest
import typer

from rerank.commands.run import run
from rerank.errors import ConfigError
from scripts.mutations.changes import CHANGES, Change

_TIMEOUT_S = 300
_FORK = multiprocessing.get_context("fork")
#: What takes seconds to import, and starts no thread.
_IMPORTED_ONCE = ("torch", "transformers.modeling_utils", "transformers.trainer", "hypothesis", "scipy.stats")
_OURS = ("rerank", "rerank_eval", "rerank_training", "scripts", "tests")

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    only: Annotated[list[str] | None, typer.Option(help="Plant changes whose path contains this. Repeatable.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Processes that plant changes, each with a copy of the tree.")] = 2,
) -> None:
    """Plant each change, and say whether the tests find it."""
    chosen = [change for change in CHANGES if not only or any(text in change.path for text in only)]
    for change in chosen:
        _planted(change)  # a change whose old text is gone is an error before the first test runs
    for name in _IMPORTED_ONCE:
        importlib.import_module(name)
    survivors = 0
    with (
        tempfile.TemporaryDirectory(prefix="mutations-") as folder,
        ProcessPoolExecutor(jobs, mp_context=_FORK, initializer=_enter_copy, initargs=(folder,)) as pool,
    ):
        for change, (is_found, seconds) in zip(chosen, pool.map(_is_found, chosen), strict=True):
            print(f"{'found   ' if is_found else 'SURVIVES'} {seconds:4.0f} s  {change}", flush=True)
            survivors += not is_found
    print(f"{survivors} of {len(chosen)} changes survive the tests")
    if survivors:
        raise typer.Exit(1)


def _planted(change: Change) -> str:
    """The content of the file with the change. Raises: ConfigError unless the old text occurs once."""
    content = Path(change.path).read_text(encoding="utf-8")
    if content.count(change.old) != 1:
        raise ConfigError(
            f"{change.path} has {change.old!r} {content.count(change.old)} times, not once: edit changes.py"
        )
    return content.replace(change.old, change.new)


def _enter_copy(folder: str) -> None:
    """Makes a copy of the files that git knows, and goes there; temporary files stay in it."""
    copy = Path(folder) / str(os.getpid())
    listed = subprocess.run(["git", "ls-files", "-z"], check=True, capture_output=True).stdout
    for name in filter(None, listed.decode().split("\0")):
        target = copy / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(name, target)
    os.chdir(copy)
    paths = [str(copy / part) for part in (".", "training", "eval")]
    sys.path[:0] = paths
    tempfile.tempdir = str(copy / "tmp")
    Path(tempfile.tempdir).mkdir()
    os.environ |= {"PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": tempfile.tempdir}


def _is_found(change: Change) -> tuple[bool, float]:
    """Plants the change in the copy, runs its tests, and takes it back. Returns whether one failed, and the seconds."""
    path = Path(change.path)
    original, start_s = path.read_text(encoding="utf-8"), time.monotonic()
    path.write_text(_planted(change), encoding="utf-8")
    try:
        code = _run_tests(change.tests)
    finally:
        path.write_text(original, encoding="utf-8")
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise ConfigError(f"the tests {' '.join(change.tests)} did not run with {change}: pytest ended with {code}")
    return code == pytest.ExitCode.TESTS_FAILED, time.monotonic() - start_s


def _run_tests(tests: tuple[str, ...]) -> int:
    """Returns pytest's exit code; a run that hangs counts as one that failed."""
    process = _FORK.Process(target=_end_with_tests, args=(tests,))
    process.start()
    process.join(_TIMEOUT_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid or 0, signal.SIGKILL)  # what tests started, too
    process.join()
    return pytest.ExitCode.TESTS_FAILED if process.exitcode == -signal.SIGKILL else process.exitcode or 0


def _end_with_tests(tests: tuple[str, ...]) -> NoReturn:
    """Runs the tests in a session of their own, on our packages as the copy has them."""
    os.setsid()
    silent = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(silent, stream)
    for name in [name for name in sys.modules if name.partition(".")[0] in _OURS]:
        del sys.modules[name]
    code = pytest.main(["-q", "-x", "--numprocesses", "0", "-p", "no:cacheprovider", "-m", "not slow", *tests])
    os._exit(code)


if __name__ == "__main__":
    run(app)
