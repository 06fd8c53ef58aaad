"""Progress of long work: a bar on a terminal, lines in any other output."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

T = TypeVar("T")

#: Share of the steps after which a line is printed.
_LINE_SHARE = 0.05
#: Time since the last line after which the next report is printed whatever its share.
_LINE_S = 30.0
#: Least time between two lines.
_SHORTEST_S = 2.0


class ProgressReport(Protocol):
    """Shows how far the stages of long work are."""

    def report(self, stage: str, done: int, total: int | None) -> None:
        """Shows that `done` of `total` steps of a stage are done; `total` is None if the number is unknown."""


@contextmanager
def show_progress(console: Console, unit: str = "") -> Iterator[ProgressReport]:
    """Shows progress while the block runs: a bar per stage, or a line per 5 % of the steps or per 30 s.

    Args:
        unit: what the steps are, such as "passages", for the speed that is shown; empty: no speed.
    """
    if console.is_terminal:
        columns = (TextColumn("{task.description:8}"), BarColumn(20), MofNCompleteColumn())
        times = (TextColumn("{task.fields[speed]}"), TimeElapsedColumn(), TimeRemainingColumn())
        with Progress(*columns, *times, console=console) as bars:
            yield _ProgressBars(bars, unit)
        return
    yield ProgressLines(console.print, unit)


def with_progress(items: Iterable[T], stage: str, total: int, console: Console) -> Iterator[T]:
    """Yields the `total` items, and shows their progress on the console."""
    with show_progress(console) as progress:
        progress.report(stage, 0, total)
        for done, item in enumerate(items, start=1):
            yield item
            progress.report(stage, done, total)


class _ProgressBars:
    """One bar per stage, created when the stage first reports."""

    def __init__(self, bars: Progress, unit: str) -> None:
        self._bars, self._unit = bars, unit
        self._tasks: dict[str, TaskID] = {}

    def report(self, stage: str, done: int, total: int | None) -> None:
        if stage not in self._tasks:
            self._tasks[stage] = self._bars.add_task(stage, total=total, completed=done, speed="")
        task = self._tasks[stage]
        self._bars.update(task, completed=done, total=total)
        if self._unit and (speed := self._bars.tasks[task].speed):
            self._bars.update(task, speed=f"{speed:,.0f} {self._unit}/s")


class ProgressLines:
    """Prints lines such as "vectors: 1,200 of 4,000 passages (30%), 400 passages/s, 0:03 elapsed, 0:07 left".

    It may be called from any thread.

    Args:
        write: prints a line.
        unit: see `show_progress`.
        clock: returns monotonic seconds.
    """

    def __init__(
        self, write: Callable[[str], object], unit: str = "", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._write, self._unit, self._clock = write, unit, clock
        self._lock = threading.Lock()
        self._stage = ""
        self._start_s = self._line_s = clock()
        self._start_done = self._line_done = self._done = 0
        self._total: int | None = None

    def report(self, stage: str, done: int, total: int | None) -> None:
        """See ProgressReport. The first report of a stage prints nothing."""
        with self._lock:
            if stage != self._stage:
                self._stage, self._start_done, self._line_done = stage, done, done
                self._start_s = self._line_s = self._clock()
            self._done, self._total = done, total
            advanced = total is not None and (done - self._line_done >= _LINE_SHARE * total or done == total)
            waited_s = self._clock() - self._line_s
            if waited_s >= _LINE_S or (advanced and waited_s >= _SHORTEST_S):
                self._print()

    def _print(self) -> None:
        self._line_done, self._line_s = self._done, self._clock()
        of = f" of {self._total:,}" if self._total else ""
        unit = f" {self._unit}" if self._unit else ""
        share = f" ({self._done / self._total:.0%})" if self._total else ""
        elapsed_s, steps = self._line_s - self._start_s, self._done - self._start_done
        speed = f"{steps / elapsed_s:,.0f}{unit}/s, " if unit else ""
        remaining = (self._total or self._done) - self._done
        left = f", {_minutes(elapsed_s * remaining / steps)} left" if steps and remaining else ""
        self._write(f"{self._stage}: {self._done:,}{of}{unit}{share}, {speed}{_minutes(elapsed_s)} elapsed{left}")


def _minutes(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes}:{seconds:02}"
