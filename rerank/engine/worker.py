"""A thread that runs functions in turn, and between two layers of a long one those that came meanwhile."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias, TypeVar

from rerank.errors import RankerFailure, ShuttingDown

log = logging.getLogger(__name__)

T = TypeVar("T")
#: None ends the thread.
_Call: TypeAlias = Callable[[], object] | None


def shutting_down() -> ShuttingDown:
    return ShuttingDown("the service is stopping; try another replica")


class Worker:
    """A thread that does not keep the process from ending, unlike that of an executor, because a model may hang.

    Args:
        name: of its work.

    Attributes:
        problem: what hangs; empty while nothing does.
    """

    def __init__(self, name: str) -> None:
        self.problem = ""
        self._name, self._has_ended = name, False
        self._calls: SimpleQueue[_Call] = SimpleQueue()
        #: Seconds for which the running function has stood still, because others ran in its middle.
        self._paused_s = 0.0
        threading.Thread(target=self._run, name=name, daemon=True).start()

    async def call(self, function: Callable[[], T], limit_s: float) -> tuple[T, float]:
        """Runs a function; returns its result and duration in seconds, without that of others in its middle.

        Raises: ShuttingDown; RankerFailure, the function has not ended after `limit_s`, or an earlier one has not yet;
        what the function raises, with RuntimeError in the place of what is not an Exception, such as a panic of Rust.
        """
        if self._has_ended:
            raise shutting_down()
        if self.problem:
            raise RankerFailure(self.problem)
        done: Future[tuple[T, float]] = Future()
        self._calls.put(partial(self._call, function, done))
        waiting = asyncio.wrap_future(done)
        await asyncio.wait({waiting}, timeout=limit_s)
        if not waiting.done():
            self.problem = f"{self._name} has not ended after {limit_s:.0f} s; restart the service if it never does"
            log.error("%s", self.problem)
            waiting.add_done_callback(self._recover)
            raise RankerFailure(self.problem)
        return await waiting

    def run_waiting(self) -> None:
        """Runs the functions that wait. Called on the thread, in the middle of a function."""
        with suppress(Empty):
            while call := self._calls.get_nowait():
                call()
            self._calls.put(None)  # it ends once the running function has

    def end(self) -> None:
        """Lets the thread end after the functions that wait; further ones fail with ShuttingDown."""
        self._has_ended = True
        self._calls.put(None)

    def _recover(self, ended: asyncio.Future[Any]) -> None:
        ended.exception()  # nobody waits for it
        log.warning("%s has ended after all", self._name)
        self.problem = ""

    def _run(self) -> None:
        while call := self._calls.get():
            call()

    def _call(self, function: Callable[[], Any], done: Future[Any]) -> None:
        if not done.set_running_or_notify_cancel():
            return
        start_s, paused_s, self._paused_s = time.perf_counter(), self._paused_s, 0.0
        try:
            result = function()
            done.set_result((result, time.perf_counter() - start_s - self._paused_s))
        except Exception as error:
            done.set_exception(error)
        except BaseException as error:
            failure = RuntimeError(repr(error))
            failure.__cause__ = error
            done.set_exception(failure)
        self._paused_s = paused_s + time.perf_counter() - start_s
