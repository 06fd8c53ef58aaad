"""The table of a proof: a row for each figure, written as soon as it is known, and for each failure and warning."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rerank.util.files import atomic_file
from scripts.bench.proof import START_S

log = logging.getLogger(__name__)

_HEAD = "| what | measured | floor | ratio |\n| --- | ---: | ---: | ---: |\n"


class OutOfTime(BaseException):
    """The time of a section is over. No `except Exception` of a library goes on after it."""


class Table(logging.Handler):
    """The page in a file, whole after each row. As a handler of logs it makes a row of each warning, of any thread."""

    def __init__(self, path: Path) -> None:
        super().__init__(logging.WARNING)
        self.path, self.has_failed = path, False
        self._page, self._one_at_a_time = _HEAD, threading.Lock()

    def set_facts(self, facts: str) -> None:
        """Puts a paragraph before the rows."""
        self._page = f"{facts}\n\n{self._page}"

    def add(self, *cells: str) -> None:
        """Adds a row: what, measured, and if there is one, the floor and the ratio to it."""
        padded = [*cells, "", "", ""][:4]
        row = f"| {' | '.join(' '.join(cell.split()).replace('|', '/') for cell in padded)} |"
        with self._one_at_a_time:
            print(f"{time.monotonic() - START_S:4.0f} s {row}", flush=True)
            self._page = f"{self._page}{row}\n"
            with atomic_file(self.path) as path:
                path.write_text(self._page, encoding="utf-8")

    def figure(self, what: str, value: float, unit: str, floor: float = 0.0, note: str = "") -> None:
        """Adds a row with a figure.

        Args:
            unit: ms, or what is done per second, such as tokens/s.
            floor: the least time, or the highest rate, that the device allows; 0: it is not known.
        """
        shown, least = (
            f"{number:,.0f} {unit}" if number >= 100 else f"{number:.3g} {unit}" for number in (value, floor)
        )
        if floor:
            ratio = value / floor if unit == "ms" else floor / value
            self.add(what, shown + note, least, f"{ratio:.2f}")
        else:
            self.add(what, shown + note)

    def fail(self, what: str, why: str) -> None:
        self.has_failed = True
        self.add(what, f"FAILED: {' '.join(why.split())[:300]}")

    def emit(self, record: logging.LogRecord) -> None:
        self.add(f"warning of {record.name}", record.getMessage()[:300])

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Adds a row that says so if the block fails, so that what follows it is measured nevertheless."""
        try:
            yield
        except Exception as error:
            log.exception("%s failed", name)
            self.fail(name, repr(error))

    @contextmanager
    def section(self, name: str, until_s: float) -> Iterator[None]:
        """A part that is ended, between two operations of Python in the main thread, at its time.

        Args:
            until_s: in seconds since the start of the proof.
        """

        def end(*_: object) -> None:
            raise OutOfTime

        before = signal.signal(signal.SIGALRM, end)
        try:
            signal.setitimer(signal.ITIMER_REAL, max(START_S + until_s - time.monotonic(), 1e-3))
            with self.part(name):
                yield
        except OutOfTime:
            self.fail(name, f"ended after {until_s:g} s, as its share of the time was over")
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
