"""The thread of a model. It runs functions in turn, and between two layers of a long one those that came meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class ModelThread:
    """A thread that does not keep the process from ending, unlike that of an executor, because a model may hang."""

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._ends = False
        #: Seconds for which the running function has stood still, because others ran in its middle.
        self._paused_s = 0.0
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def submit(self, function: Callable[[], T]) -> Future[tuple[T, float]]:
        """Runs a function; returns its result and duration in seconds, without that of others in its middle."""
        done: Future[tuple[T, float]] = Future()
        self._calls.put(partial(self._call, function, done))
        return done

    def run_waiting(self) -> None:
        """Runs the functions that wait. Called on the thread, in the middle of a function."""
        while True:
            try:
                call = self._calls.get_nowait()
            except Empty:
                return
            call()

    def end(self) -> None:
        """Lets the thread end after the functions that wait."""
        self._calls.put(lambda: setattr(self, "_ends", True))

    def _run(self) -> None:
        while not self._ends:
            self._calls.get()()

    def _call(self, function: Callable[[], Any], done: Future[Any]) -> None:
        if not done.set_running_or_notify_cancel():
            return
        start_s, paused_s, self._paused_s = time.perf_counter(), self._paused_s, 0.0
        try:
            result = function()
            done.set_result((result, time.perf_counter() - start_s - self._paused_s))
        except BaseException as error:  # raised where the result is awaited
            done.set_exception(error)
        self._paused_s = paused_s + time.perf_counter() - start_s
