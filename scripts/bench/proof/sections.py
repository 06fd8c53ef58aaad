"""Runs each section of a proof in a separate process, and ends it when its share of the time is over.

One process runs them all, so that torch is imported once. After a failure there is a new one: an error of CUDA leaves
the GPU unusable for its process.
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

from scripts.bench.proof.table import Row, failed

log = logging.getLogger(__name__)

#: Imports of a section initialize CUDA, so that a forked process could not use it.
_PROCESSES = multiprocessing.get_context("spawn")


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
