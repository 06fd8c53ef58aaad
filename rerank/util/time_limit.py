"""Ends the wait for work that takes too long, such as loading files of strangers."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def in_thread(function: Callable[[], T]) -> tuple[Future[T], threading.Thread]:
    """Calls a function on a thread of its own that does not keep the process alive, and returns its outcome to be."""
    outcome: Future[T] = Future()
    outcome.set_running_or_notify_cancel()  # so that a wait that is given up does not cancel it

    def run() -> None:
        try:
            outcome.set_result(function())
        except BaseException as error:  # raised by `result`
            outcome.set_exception(error)

    thread = threading.Thread(target=run, name="in thread", daemon=True)
    thread.start()
    return outcome, thread


def within(limit_s: float, function: Callable[[], T]) -> T:
    """Returns what a function returns, which runs on a thread of its own, see `in_thread`.

    A function that is late is told to stop: it does so if it runs in Python, such as in a chat template without an end.
    One that hangs in the code of a library keeps its thread.

    Raises:
        TimeoutError: the function is not done within the limit.
        BaseException: as the function does.
    """
    outcome, thread = in_thread(function)
    try:
        return outcome.result(limit_s)
    except TimeoutError:
        if not outcome.done() and thread.ident is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit))
        raise
