"""Runs the sections of a proof, each in a process of its own, which ends with its share of the time."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from scripts.bench.proof.setting import Proof, Row, failed

log = logging.getLogger(__name__)

#: Processes are forked, so that they need not import torch again. The parent must not use the GPU therefore.
_PROCESSES = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Section:
    """A part of a proof.

    Attributes:
        prove: yields its rows as soon as it has them.
        until_s: when it is ended, in seconds since the start of the proof. What earlier sections leave is its own.
    """

    name: str
    prove: Callable[[Proof], Iterator[Row]]
    until_s: float


def rows_of(section: Section, proof: Proof, start_s: float) -> Iterator[Row]:
    """Yields the rows of a section, and one that says why if it ends early.

    Args:
        start_s: of the proof, by the monotonic clock.
    """
    yield from in_process(section.name, lambda: section.prove(proof), start_s + section.until_s)


def in_process(what: str, produce: Callable[[], Iterable[Any]], deadline_s: float) -> Iterator[Any]:
    """Yields what a function yields in a process of its own; at the end a row of failure if it did not finish."""
    receiver, sender = _PROCESSES.Pipe(duplex=False)
    process = _PROCESSES.Process(target=_run, args=(produce, sender))
    process.start()
    pid = process.pid
    assert pid is not None
    sender.close()
    has_finished = False
    try:
        while receiver.poll(max(0.0, deadline_s - time.monotonic())):
            try:
                has_finished, message = receiver.recv()
            except EOFError:
                process.join()
                yield failed(what, f"its process ended with {process.exitcode}")
                return
            if has_finished:
                if message:
                    yield failed(what, message)
                return
            yield message
        yield failed(what, "ended, as its share of the time was over")
    finally:
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # with the processes that it started
        process.join()


def _run(produce: Callable[[], Iterable[Any]], sender: Connection) -> None:
    os.setpgid(0, 0)
    to_table = _WarningsToTable(sender)
    for package in ("rerank", "rerank_training"):
        logging.getLogger(package).addHandler(to_table)
    try:
        for item in produce():
            to_table.send((False, item))
        to_table.send((True, ""))
    except Exception as error:
        log.exception("a section failed")
        to_table.send((True, repr(error)))


class _WarningsToTable(logging.Handler):
    """Makes a row of each warning of ours, such as layers that could not be compiled, from whatever thread."""

    def __init__(self, sender: Connection) -> None:
        super().__init__(logging.WARNING)
        self._sender, self._one_at_a_time = sender, threading.Lock()

    def emit(self, record: logging.LogRecord) -> None:
        self.send((False, Row(f"warning of {record.name}", record.getMessage()[:300])))

    def send(self, message: tuple[bool, Any]) -> None:
        with self._one_at_a_time:
            self._sender.send(message)
