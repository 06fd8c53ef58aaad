"""The table of a proof: a row for each figure, written as soon as it is known, and for each failure and warning."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rerank.util.files import atomic_file

log = logging.getLogger(__name__)

_HEAD = "| what | measured | floor | ratio |\n| --- | ---: | ---: | ---: |\n"


class OutOfTime(BaseException):
    """The time of a section is over. No `except Exception` of a library goes on after it."""


@dataclass(frozen=True)
class Row:
    """A row of the table; the floor and the ratio to it are left out where there is none."""

    what: str
    measured: str
    floor: str = ""
    ratio: str = ""
    has_failed: bool = False

    def __str__(self) -> str:
        cells = (self.what, self.measured, self.floor, self.ratio)
        return f"| {' | '.join(' '.join(cell.split()).replace('|', '/') for cell in cells)} |"


def failed(what: str, why: str) -> Row:
    return Row(what, f"FAILED: {' '.join(why.split())[:300]}", has_failed=True)


def timed(what: str, ms: float, floor_ms: float = 0.0, note: str = "") -> Row:
    """A row with a time; 0: there is no floor."""
    shown, floor = (f"{value:,.0f} ms" if value >= 100 else f"{value:.3g} ms" for value in (ms, floor_ms))
    return Row(what, f"{shown}{note}", floor, f"{ms / floor_ms:.2f}") if floor_ms else Row(what, f"{shown}{note}")


def rate(what: str, per_s: float, most_per_s: float, unit: str = "tokens", note: str = "") -> Row:
    """A row with tokens or queries per second, and the most that the device allows."""
    shown, most = (
        f"{value:,.0f} {unit}/s" if value >= 100 else f"{value:.3g} {unit}/s" for value in (per_s, most_per_s)
    )
    return Row(what, f"{shown}{note}", most, f"{most_per_s / per_s:.2f}")


def attempted(what: str, rows: Callable[[], Iterable[Row]]) -> Iterator[Row]:
    """Yields rows; if what measures them fails, one that says why, so that others are measured nevertheless."""
    try:
        yield from rows()
    except Exception as error:
        log.exception("%s failed", what)
        yield failed(what, repr(error))


class Table(logging.Handler):
    """The page in a file, whole after each row. As a handler of logs it makes a row of each warning, of any thread."""

    def __init__(self, path: Path) -> None:
        super().__init__(logging.WARNING)
        self.start_s, self.has_failed = time.monotonic(), False
        self._path, self._page, self._one_at_a_time = path, _HEAD, threading.Lock()

    def set_facts(self, facts: str) -> None:
        """Puts a paragraph before the rows."""
        self._page = f"{facts}\n\n{self._page}"

    def add(self, row: Row) -> None:
        with self._one_at_a_time:
            print(f"{time.monotonic() - self.start_s:4.0f} s {row}", flush=True)
            self._page, self.has_failed = f"{self._page}{row}\n", self.has_failed or row.has_failed
            with atomic_file(self._path) as path:
                path.write_text(self._page, encoding="utf-8")

    def emit(self, record: logging.LogRecord) -> None:
        self.add(Row(f"warning of {record.name}", record.getMessage()[:300]))

    def add_section(self, name: str, rows: Callable[[], Iterable[Row]], until_s: float) -> None:
        """Adds the rows of a section, and one that says so if it fails or is not over in time.

        Args:
            until_s: when it is ended, in seconds since the start.
        """
        try:
            with _time_limit(self.start_s + until_s - time.monotonic()):
                for row in attempted(name, rows):
                    self.add(row)
        except OutOfTime:
            self.add(failed(name, f"ended after {until_s:g} s, as its share of the time was over"))


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raises OutOfTime in the main thread when the time is over, between two operations of Python."""

    def end(*_: object) -> None:
        raise OutOfTime

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-3))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
