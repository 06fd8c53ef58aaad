"""Sections of a proof: each gives rows of a table, in a separate process, and ends when its share of the time is over.

One process runs them all, so that torch is imported once. After a failure there is a new one: an error of CUDA leaves
the GPU unusable for its process. This module is free of torch, which takes seconds.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any

log = logging.getLogger(__name__)

#: Imports of a section initialize CUDA, so that a forked process could not use it.
_PROCESSES = multiprocessing.get_context("spawn")


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


@dataclass(frozen=True)
class Device:
    """A device and what it does at best.

    Attributes:
        kind: cuda or cpu.
        name: of the GPU.
        versions: of torch and transformers.
        flop_per_s: of a large matrix product, in bfloat16 on a GPU.
        bytes_per_s: that a copy within its memory reads and writes.
    """

    kind: str
    name: str
    versions: str
    flop_per_s: float
    bytes_per_s: float


def failed(what: str, why: str) -> Row:
    return Row(what, f"FAILED: {' '.join(why.split())[:300]}", has_failed=True)


def timed(what: str, ms: float, floor_ms: float = 0.0, note: str = "") -> Row:
    """A row with a time; 0: there is no floor."""
    if not floor_ms:
        return Row(what, f"{_digits(ms)} ms{note}")
    return Row(what, f"{_digits(ms)} ms{note}", f"{_digits(floor_ms)} ms", f"{ms / floor_ms:.2f}")


def rate(what: str, tokens_per_s: float, most: float, note: str = "") -> Row:
    """A row with tokens per second, and the most that the device allows."""
    return Row(what, f"{tokens_per_s:,.0f} tokens/s{note}", f"{most:,.0f} tokens/s", f"{most / tokens_per_s:.2f}")


def _digits(ms: float) -> str:
    return f"{ms:,.0f}" if ms >= 100 else f"{ms:.3g}"


@dataclass(frozen=True)
class Section:
    """A part of a proof.

    Attributes:
        prove: MODULE:FUNCTION. The function gets a `setting.Proof`, and yields rows as soon as it has them.
        until_s: when it is ended, in seconds since the start of the proof. It may also use what earlier sections leave.
    """

    name: str
    prove: str
    until_s: float


class Worker:
    """A process that runs functions, in a `with` block, and ends with all processes that they started."""

    def __enter__(self) -> Worker:
        self._connection, its_end = _PROCESSES.Pipe()
        self._process = _PROCESSES.Process(target=_work, args=(its_end,))
        self._process.start()
        its_end.close()
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()
        if self._process.pid:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()  # if it had no group yet
        self._process.join()

    def replace(self) -> None:
        """Ends the process and starts another one."""
        self.__exit__()
        self.__enter__()

    def run(self, what: str, function: str, arguments: tuple[Any, ...], deadline_s: float) -> Iterator[Any]:
        """Yields what a function yields, and at the end a row of failure if it did not finish by the deadline.

        Args:
            function: MODULE:FUNCTION.
            deadline_s: by the monotonic clock.
        """
        self._connection.send((function, arguments))
        while self._connection.poll(max(0.0, deadline_s - time.monotonic())):
            try:
                has_ended, message = self._connection.recv()
            except EOFError:
                self._process.join()
                yield failed(what, f"its process ended with {self._process.exitcode}")
                return
            if has_ended:
                if message:
                    yield failed(what, message)
                return
            yield message
        yield failed(what, "ended, as its share of the time was over")


def _work(connection: Connection) -> None:
    os.setpgid(0, 0)
    to_table = _WarningsToTable(connection)
    for package in ("rerank", "rerank_training"):
        logging.getLogger(package).addHandler(to_table)
    while True:
        try:
            name, arguments = connection.recv()
        except EOFError:  # the proof has ended
            return
        try:
            module, _, function = name.partition(":")
            for item in getattr(import_module(module), function)(*arguments):
                to_table.send((False, item))
            to_table.send((True, ""))
        except Exception as error:
            log.exception("a section failed")
            to_table.send((True, repr(error)))


class _WarningsToTable(logging.Handler):
    """Makes a row of each warning of ours, such as layers that could not be compiled, from whatever thread."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(logging.WARNING)
        self._connection, self._one_at_a_time = connection, threading.Lock()

    def emit(self, record: logging.LogRecord) -> None:
        self.send((False, Row(f"warning of {record.name}", record.getMessage()[:300])))

    def send(self, message: tuple[bool, Any]) -> None:
        with self._one_at_a_time:
            self._connection.send(message)
