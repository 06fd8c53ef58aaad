"""Progress of long work, in lines."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from rich.console import Console

T = TypeVar("T")

#: A line is printed after each of these shares of the work, and after a step that ends so many seconds after the last.
_LINE_SHARE, _LINE_S = 0.05, 30.0
#: Quick work prints no more lines than one in this time, in seconds.
_SHORTEST_S = 2.0


def with_progress(items: Iterable[T], stage: str, total: int, console: Console) -> Iterator[T]:
    """The `total` items, with their progress shown on the console."""
    progress = Progress(console)
    progress.report(stage, 0, total)
    for done, item in enumerate(items, start=1):
        yield item
        progress.report(stage, done, total)


class Progress:
    """Prints lines such as "vectors: 1,200 of 4,000 passages (30%), 400 passages/s, 0:03 elapsed, 0:07 left".

    It may be called from any thread.

    Args:
        unit: of the steps, such as "passages", for the speed that is shown; empty: no speed.
        clock: seconds, monotonic.
    """

    def __init__(self, console: Console, unit: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._unit, self._clock = console, unit, clock
        self._lock = threading.Lock()
        self._stage = ""
        self._start_s = self._line_s = clock()
        self._start_done = self._line_done = self._done = 0
        self._total: int | None = None

    def report(self, stage: str, done: int, total: int | None) -> None:
        """Says that `done` of `total` steps of a stage are done. The first report of a stage prints nothing.

        Args:
            total: None if it is unknown.
        """
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
        self._console.print(
            f"{self._stage}: {self._done:,}{of}{unit}{share}, {speed}{_minutes(elapsed_s)} elapsed{left}"
        )


def _minutes(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes}:{seconds:02}"
