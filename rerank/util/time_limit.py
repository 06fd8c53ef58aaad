"""Ends the wait for work that takes too long, such as loading files of strangers."""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import TypeVar

T = TypeVar("T")

#: Threads of functions that were late.
_late = weakref.WeakSet[threading.Thread]()


class BlockedByHungCall(TimeoutError):
    """A function was not called, because the one before it was late and hangs."""


def in_thread(function: Callable[[], T]) -> tuple[Future[T], threading.Thread]:
    """Calls a function on a separate daemon thread, and returns its outcome to be."""
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


def within(limit_s: float, function: Callable[[], T], turn: AbstractContextManager[object]) -> T:
    """Returns what a function returns, which runs on a separate thread, see `in_thread`.

    A function that is late gets an exception: it stops if it runs in Python, such as in a chat template without an end.
    One that hangs in the code of a library keeps its thread, and its turn.

    Args:
        limit_s: the longest time of the function.
        turn: a lock that the function holds; the time begins when it has it.

    Raises:
        TimeoutError: the function is not done within the limit.
        BlockedByHungCall: the function that has the turn hangs.
        BaseException: as the function does.
    """
    begun = threading.Event()

    def run() -> T:
        with turn:
            begun.set()
            return function()

    outcome, thread = in_thread(run)
    try:
        while not begun.wait(limit_s):
            if any(late.is_alive() for late in _late):
                raise BlockedByHungCall
        return outcome.result(limit_s)
    except TimeoutError:
        if not outcome.done() and thread.ident is not None:
            _late.add(thread)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit))
        raise
