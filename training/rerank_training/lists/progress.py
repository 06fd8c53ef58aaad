"""Progress of long work: a bar on a terminal, and lines where the output goes to a file or a pipe."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import track

T = TypeVar("T")

#: A line is printed after this share of the items, or after this time if the share takes longer.
_SHARE, _INTERVAL_S = 0.05, 30.0
#: Shortest time between two lines, so that quick work prints none.
_MIN_INTERVAL_S = 1.0


def with_progress(items: Iterable[T], name: str, total: int, console: Console) -> Iterator[T]:
    """The items, with their progress shown on the console.

    Args:
        name: of the items, such as "queries".
        total: number of items.
    """
    if console.is_terminal:
        yield from track(items, name, total=total, console=console)
        return
    lines = ProgressLines(name, total, console)
    for done, item in enumerate(items, start=1):
        yield item
        lines.report(done)


class ProgressLines:
    """Prints "queries: 120 of 400" after every 5 % of the work, and at least every 30 seconds."""

    def __init__(self, name: str, total: int, console: Console) -> None:
        self._name, self._total, self._console = name, total, console
        self._printed, self._printed_s = 0, time.monotonic()

    def report(self, done: int) -> None:
        """Reports that `done` of all items are complete."""
        elapsed_s = time.monotonic() - self._printed_s
        enough = done - self._printed >= _SHARE * self._total and elapsed_s >= _MIN_INTERVAL_S
        if enough or elapsed_s >= _INTERVAL_S:
            self._console.print(f"{self._name}: {done:,} of {self._total:,}")
            self._printed, self._printed_s = done, time.monotonic()
