"""A command whose output is on a disk that becomes full, or that is read-only: what it says, and whether it goes on.

The disk is a tmpfs in a mount namespace of its own, which needs no root where user namespaces are allowed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from rerank.errors import ConfigError
from scripts.trials.options import WORK, Work
from scripts.trials.table import header, row

#: Stands for the folder of the disk in the arguments of a command.
DISK = "DISK"
_ENOUGH_BYTES, _PAGE_BYTES = 1 << 30, 4096
_NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount")
_INSIDE = "RERANK_TRIAL_IN_NAMESPACE"
_TIMEOUT_S, _POLL_S = 300.0, 0.05
#: Beginnings of lines of Python's and Java's stack traces.
_TRACE = re.compile(r"^(Traceback \(most recent call last\)|Exception in thread|\s+at [\w.$]+\()", re.MULTILINE)
#: How files end of which only a part would still be a file.
_ENDS = {".png": b"IEND\xaeB`\x82", ".html": b"</html>", ".trec": b"\n", ".md": b"\n"}


@dataclass(frozen=True)
class Trial:
    """One size of the disk, how the command ended on it, and what was wrong with that.

    Attributes:
        disk: its size in bytes, or "read-only".
        message: the last line of the command.
        problems: what a user would not expect; empty if all went well.
    """

    disk: str
    exit_code: int
    message: str
    problems: list[str] = field(default_factory=list)

    def row(self) -> str:
        return row(self.disk, self.exit_code, self.message, "; ".join(self.problems) or "none")


def disk(
    command: Annotated[list[str], typer.Argument(help="A command whose output is below DISK, such as DISK/index.")],
    result: Annotated[
        list[str], typer.Option(help="Path on the disk that the command writes, such as index. Repeatable.")
    ],
    sizes: Annotated[int, typer.Option(min=1, help="Sizes of the disk, all below what the command needs.")] = 8,
    work: Work = WORK,
) -> None:
    """Runs a command on a disk that becomes full, again with space, and on a read-only disk.

    python -m scripts.trials disk --result index -- rerank index --collection pydoc --out DISK/index
    """
    enter_namespace()
    print(header("disk", "exit code", "message", "problems"))
    for trial in full_disk(command, result, sizes, (work / "disk").absolute()):
        print(trial.row(), flush=True)


def enter_namespace() -> None:
    """Starts this process again in a mount namespace of its own, unless it is in one. Raises: ConfigError."""
    if _INSIDE in os.environ:
        return
    if not is_possible():
        raise ConfigError(f"`{' '.join(_NAMESPACE)}` fails here; allow user namespaces, or run this as root")
    again = [*_NAMESPACE, sys.executable, "-m", "scripts.trials", *sys.argv[1:]]
    os.execvpe(again[0], again, {**os.environ, _INSIDE: "1"})


def is_possible() -> bool:
    """True if this machine lets a process mount a disk of its own."""
    if shutil.which(_NAMESPACE[0]) is None:
        return False
    mounting = [*_NAMESPACE, "mount", "-t", "tmpfs", "tmpfs", "/tmp"]
    return subprocess.run(mounting, capture_output=True, check=False).returncode == 0


def full_disk(command: Sequence[str], results: Sequence[str], sizes: int, folder: Path) -> Iterator[Trial]:
    """Runs a command on disks of so many sizes below what it needs, and on a read-only one.

    Args:
        command: the arguments, in which DISK stands for the disk.
        results: paths on the disk of what the command writes: complete or not there after a failure.
        folder: where the disk is mounted.

    Raises:
        ConfigError: the command fails on a disk with space.
    """
    folder.mkdir(parents=True, exist_ok=True)
    command = [argument.replace(DISK, str(folder)) for argument in command]
    with _mounted(folder, _ENOUGH_BYTES):
        used, ended = _used_bytes(command, folder)
        if ended.returncode:
            raise ConfigError(f"the command fails with space on the disk: {ended.stderr[-2000:]}")
        if missing := [name for name in results if not (folder / name).exists()]:
            raise ConfigError(f"the command has not written {', '.join(missing)}")
    for number in range(sizes):
        size = int(used * (number + 0.5) / sizes) // _PAGE_BYTES * _PAGE_BYTES or _PAGE_BYTES
        with _mounted(folder, size):
            trial = _failed(f"{size:,} bytes", command, folder, results, "space")
            _mount(folder, "remount", f"size={_ENOUGH_BYTES}")
            yield _repeated(trial, command, folder, results)
    with _mounted(folder, _ENOUGH_BYTES):
        _mount(folder, "remount", "ro")
        yield _failed("read-only", command, folder, results, "ead-only")


def _failed(disk: str, command: Sequence[str], folder: Path, results: Sequence[str], reason: str) -> Trial:
    ended = _run(command)
    lines = [line for line in ended.stderr.splitlines() if line.strip()]
    message = next((line for line in reversed(lines) if line.startswith("error: ")), lines[-1] if lines else "")
    trial = Trial(disk, ended.returncode, message.replace(str(folder), DISK))
    if ended.returncode not in (1, 2):
        trial.problems.append(f"exit code {ended.returncode}")
    if traces := _TRACE.findall(ended.stderr + ended.stdout):
        trial.problems.append(f"{len(traces)} lines of stack traces")
    if not message.startswith("error: "):
        trial.problems.append("no error message")
    elif reason not in message:
        trial.problems.append("the message does not say why")
    trial.problems.extend(f"{name} is half-written" for name in results if not is_complete(folder / name))
    return trial


def _repeated(trial: Trial, command: Sequence[str], folder: Path, results: Sequence[str]) -> Trial:
    """The trial with what goes wrong when there is space again."""
    ended = _run(command)
    if ended.returncode:
        trial.problems.append(f"not resumed: {ended.stderr[-300:]}")
    trial.problems.extend(f"{name} is missing at the end" for name in results if not (folder / name).exists())
    return trial


def is_complete(path: Path) -> bool:
    """True unless a file is a part of one. A folder counts as a part, as it should not be there after a failure."""
    if path.is_dir():
        return False
    if not path.exists():
        return True
    content = path.read_bytes()
    if path.suffix not in (".json", ".jsonl"):
        return content.rstrip(b" ").removesuffix(b"\n" if path.suffix == ".html" else b"").endswith(_ENDS[path.suffix])
    try:
        for text in content.splitlines() if path.suffix == ".jsonl" else [content]:
            json.loads(text)
    except ValueError:
        return False
    return True


def _used_bytes(command: Sequence[str], folder: Path) -> tuple[int, subprocess.CompletedProcess[str]]:
    """The largest number of bytes that the disk held while the command ran, and how it ended."""
    used = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None:
            time.sleep(_POLL_S)
            state = os.statvfs(folder)
            used = max(used, (state.f_blocks - state.f_bfree) * state.f_frsize)
        out, errors = process.communicate()
    return used, subprocess.CompletedProcess(command, process.returncode, out, errors)


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)


@contextmanager
def _mounted(folder: Path, n_bytes: int) -> Iterator[None]:
    _mount(folder, f"size={n_bytes}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def _mount(folder: Path, *options: str) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", str(folder)], check=True)
