"""Atomic writes: files and folders that appear whole or not at all. Hashes of files."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rerank.errors import ConfigError


@contextmanager
def atomic_folder(out: Path) -> Iterator[Path]:
    """A temporary folder beside `out` that takes its name when the block ends well and vanishes when it does not.

    A process that is killed leaves the temporary folder behind; the next call for the same `out` removes it.

    Raises:
        ConfigError: `out` exists already, or another process made it in the meantime.
    """
    out = out.absolute()
    if out.exists():
        raise ConfigError(f"{out} exists already; remove it first or choose another folder")
    out.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(out)
    building = Path(tempfile.mkdtemp(prefix=f"{_prefix(out)}{os.getpid()}-", dir=out.parent))
    try:
        yield building
        building.chmod(0o755)  # mkdtemp's 0700 would shut out a service that runs as another user
        _rename(building, out)
    finally:
        shutil.rmtree(building, ignore_errors=True)


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`; what the block writes there replaces `path` when the block ends well.

    When the block raises, the temporary file is removed and `path` stays as it was.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.writing")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _rename(building: Path, out: Path) -> None:
    try:
        building.rename(out)
    except OSError as error:
        if not out.exists():
            raise
        raise ConfigError(f"{out} exists now; another process made it in the meantime") from error


def sha256_of_files(paths: Iterable[Path]) -> str:
    """The file's own SHA-256 for one file; for several, that of their digests in the given order."""
    digests = [_sha256(path) for path in paths]
    return digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _prefix(out: Path) -> str:
    return f".{out.name}.building-"


def _remove_abandoned(out: Path) -> None:
    for folder in out.parent.iterdir():
        builder = re.fullmatch(rf"{re.escape(_prefix(out))}(\d+)-.*", folder.name)
        if builder and not _is_running(int(builder[1])):
            shutil.rmtree(folder, ignore_errors=True)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
