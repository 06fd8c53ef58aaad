"""Progress of long work: a bar on a terminal, lines in any other output."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

#: Called when one more step is done.
Advance: TypeAlias = Callable[[], None]

#: A line is printed after each of these shares of the work, and whenever nothing was printed for so many seconds.
LINE_SHARE, LINE_S = 0.05, 30.0
#: Quick work prints no more lines than one in this time, in seconds.
_SHORTEST_S = 2.0


@contextmanager
def progress(console: Console, title: str, total: int, done: int = 0) -> Iterator[Advance]:
    """Shows the progress of `total` steps, of which `done` are done already, and yields a function to advance it.

    A bar moves every second, with the elapsed time. Output that is not a terminal gets a line per 5 % of the steps, and
    at least one per 30 seconds.
    """
    if console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, TextColumn("left"), TimeRemainingColumn(), console=console) as bars:
            bar = bars.add_task(title, total=total, completed=done)
            yield lambda: bars.advance(bar)
        return
    lines = ProgressLines(console.print, title, total, done)
    stopped = threading.Event()
    thread = threading.Thread(target=_print_regularly, args=(lines, stopped), daemon=True)
    thread.start()
    try:
        yield lines.advance
    finally:
        stopped.set()
        thread.join()


class ProgressLines:
    """Prints lines such as "first: 12 of 43 queries, 1:05 elapsed"; may be called from several threads.

    Args:
        write: prints a line.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        write: Callable[[str], object],
        title: str,
        total: int,
        done: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._write = write
        self._title = title
        self._total = total
        self._done = self._printed = done
        self._clock = clock
        self._start_s = self._printed_s = clock()
        self._lock = threading.Lock()

    def advance(self) -> None:
        with self._lock:
            self._done += 1
            is_due = self._done - self._printed >= LINE_SHARE * self._total or self._done == self._total
            if is_due and self._clock() - self._printed_s >= _SHORTEST_S:
                self._print()

    def print_if_silent(self) -> None:
        """Prints a line if the last one is 30 seconds old."""
        with self._lock:
            if self._clock() - self._printed_s >= LINE_S:
                self._print()

    def _print(self) -> None:
        self._printed, self._printed_s = self._done, self._clock()
        minutes, seconds = divmod(round(self._printed_s - self._start_s), 60)
        self._write(f"{self._title}: {self._done} of {self._total}, {minutes}:{seconds:02} elapsed")


def _print_regularly(lines: ProgressLines, stopped: threading.Event) -> None:
    while not stopped.wait(1.0):
        lines.print_if_silent()
