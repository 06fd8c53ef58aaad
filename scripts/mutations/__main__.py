"""Plants changes one at a time in a copy of the tree, and runs the tests that must find them.

    python -m scripts.mutations [--only TEXT]...

Prints a line for each change; the exit code is 1 if the tests pass with one of them. Some 40 s a change on two cores.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

from rerank.commands.run import run
from rerank.errors import ConfigError
from scripts.mutations.changes import CHANGES, Change

_TIMEOUT_S = 300
#: pytest's exit code when tests failed; any other one but 0 means that they did not run.
_FAILED = 1

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    only: Annotated[list[str] | None, typer.Option(help="Plant changes whose path contains this. Repeatable.")] = None,
) -> None:
    """Plant each change, and say whether the tests find it."""
    chosen = [change for change in CHANGES if not only or any(text in change.path for text in only)]
    for change in chosen:
        _planted(change)  # a change whose old text is gone is an error before the first test runs
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        copy = _copied(Path(folder))
        survivors = [change for change in chosen if not _is_found(change, copy)]
    print(f"{len(survivors)} of {len(chosen)} changes survive the tests")
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


def _copied(folder: Path) -> Path:
    """A copy of the files that git knows."""
    listed = subprocess.run(["git", "ls-files", "-z"], check=True, capture_output=True).stdout
    for name in filter(None, listed.decode().split("\0")):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(name, target)
    return folder


def _is_found(change: Change, copy: Path) -> bool:
    """Plants the change in the copy, runs its tests, and takes it back."""
    path, original = copy / change.path, Path(change.path).read_text(encoding="utf-8")
    path.write_text(_planted(change), encoding="utf-8")
    start_s = time.monotonic()
    try:
        code = _run_tests(change.tests, copy)
    finally:
        path.write_text(original, encoding="utf-8")
    if code not in (0, _FAILED):
        raise ConfigError(f"the tests {change.tests} did not run: pytest ended with {code}")
    print(f"{'SURVIVES' if code == 0 else 'found   '} {time.monotonic() - start_s:4.0f} s  {change}", flush=True)
    return code == _FAILED


def _run_tests(tests: str, copy: Path) -> int:
    """Returns pytest's exit code; a run that hangs counts as one that failed."""
    flags = ["-q", "-x", "--numprocesses", "0", "-p", "no:cacheprovider", "-m", "not slow"]
    paths = os.pathsep.join(str(copy / part) for part in (".", "training", "eval"))
    environment = os.environ | {"PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", *flags, tests]
    try:
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, check=False, timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return _FAILED
    return done.returncode


if __name__ == "__main__":
    run(app)
