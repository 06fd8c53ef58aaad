"""The folder of an unfinished index, from which the next build resumes after a kill."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rerank.errors import ConfigError
from rerank.util.files import (
    absolute_new_path,
    damage_of,
    rename_to_new,
    report_disk_errors,
    report_uncreatable,
    sync,
    synced_sizes,
)
from rerank.util.json_files import read_saved, write_synced

log = logging.getLogger(__name__)

#: Names in the folder: the unfinished index, the plan, and the durations and file sizes of the finished steps.
_INDEX, _PLAN, _STEPS = "index", "plan.json", "steps.json"
#: The content of _STEPS before the first step is finished.
_NOTHING: dict[str, Any] = {"seconds": {}, "files": {}}
_WAY_OUT = "free disk space and give the same command again, which goes on where it stopped"


class BuildFolder:
    """The steps of a build and its files: the index in `index`, all others next to it.

    Attributes:
        folder: OUT.partial, next to the target OUT.
        index: the folder that becomes OUT.
        seconds: finished step → its duration in seconds, without the time that was lost by kills.
    """

    def __init__(self, folder: Path, out: Path) -> None:
        self.folder = folder
        self.index = folder / _INDEX
        self._out = out
        self.seconds: dict[str, float] = {**(read_saved(folder / _STEPS) or _NOTHING)["seconds"]}

    def step(self, name: str, work: Callable[[], float | None]) -> None:
        """Calls `work` unless an earlier build has finished this step; `work` may return its duration in seconds."""
        if name in self.seconds:
            return
        start_s = time.perf_counter()
        duration_s = work() or time.perf_counter() - start_s
        self.seconds[name] = round(duration_s, 3)
        write_synced(self.folder / _STEPS, {"seconds": self.seconds, "files": synced_sizes(self.index)})

    def finish(self) -> None:
        """Renames the index to OUT, and removes the other files."""
        sync(self.index)
        rename_to_new(self.index, self._out)
        self.discard()

    def discard(self) -> None:
        """Removes all files of the build."""
        shutil.rmtree(self.folder)


@contextmanager
def build_folder(out: Path, plan: Mapping[str, Any], replace_others: bool = False) -> Iterator[BuildFolder]:
    """The folder for the build of `out`, with the finished steps of an earlier build with the same plan.

    Args:
        out: path of the folder to build, which must not exist.
        plan: name → value, as JSON, of everything that the index depends on.
        replace_others: whether an unfinished index with another plan is removed, instead of an error.

    Raises:
        ConfigError: `out` exists, cannot be created, is being built by another process, or has an unfinished index with
            another plan; or the disk is full, in which case the next call resumes.
    """
    out = absolute_new_path(out)
    folder = out.with_name(f"{out.name}.partial")
    with report_uncreatable(out):
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder, os.O_RDONLY)
    try:
        _lock(lock, out)
        with report_disk_errors(folder, _WAY_OUT):
            _check_plan(folder, plan, replace_others)
            yield BuildFolder(folder, out)
    finally:
        os.close(lock)


def _lock(descriptor: int, out: Path) -> None:
    """Locks the folder until its descriptor is closed or the process ends. Raises: ConfigError if it is locked."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise ConfigError(f"another process is building {out}; wait for it, or choose another folder") from error


def _check_plan(folder: Path, plan: Mapping[str, Any], replace_others: bool) -> None:
    """Empties the folder unless it holds an undamaged unfinished index with this plan.

    Raises:
        ConfigError: the unfinished index has another plan.
    """
    unfinished = (folder / _INDEX).is_dir()  # False if the process was killed after it renamed the index to OUT
    begun = read_saved(folder / _PLAN) if unfinished else {}
    if begun and begun != plan and not replace_others:
        differences = [
            f"{name} {begun.get(name)} instead of {plan.get(name)}"
            for name in {**begun, **plan}
            if begun.get(name) != plan.get(name)
        ]
        raise ConfigError(
            f"{folder} holds an unfinished index with {'; '.join(differences)}; repeat the command that began it, or "
            "remove the folder to start over"
        )
    damage = _damage(folder) if unfinished else ""
    if begun == plan and not damage:
        return
    if damage:
        log.warning("%s, as after a power loss: the build starts over", damage)
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    write_synced(folder / _PLAN, plan)


def _damage(folder: Path) -> str:
    """The problem of a file of the finished steps that is truncated or missing; empty if all are complete."""
    for path in (folder / _PLAN, folder / _STEPS):
        if path.is_file() and read_saved(path) is None:
            return f"{path} is cut"
    return damage_of(folder / _INDEX, (read_saved(folder / _STEPS) or _NOTHING)["files"])
