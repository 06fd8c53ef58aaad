"""Limits the time of functions that could take for ever, such as loading files of strangers."""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import TypeVar

T = TypeVar("T")

#: Threads of functions that ran longer than their limit.
_late = weakref.WeakSet[threading.Thread]()


class BlockedByHungCall(TimeoutError):
    """A function was not called, because an earlier one holds the lock, ran out of its time and hangs."""


def in_thread(function: Callable[[], T]) -> tuple[Future[T], threading.Thread]:
    """Calls a function on a new daemon thread, and returns the future of its result, and the thread."""
    outcome: Future[T] = Future()
    outcome.set_running_or_notify_cancel()  # a running future cannot be cancelled by those who stop waiting for it

    def run() -> None:
        try:
            outcome.set_result(function())
        except BaseException as error:  # raised by `result`
            outcome.set_exception(error)

    thread = threading.Thread(target=run, name="in thread", daemon=True)
    thread.start()
    return outcome, thread


def within(limit_s: float, function: Callable[[], T], lock: AbstractContextManager[object]) -> T:
    """Calls a function on another thread, and returns its result if it takes at most `limit_s`.

    After that time an exception is raised in its thread. It stops a function that runs Python, such as an endless chat
    template. A function that hangs in the code of a library keeps its thread and the lock.

    Args:
        limit_s: the longest time of the function in seconds, without the wait for the lock.
        lock: the lock that is held while the function runs.

    Raises:
        TimeoutError: the function has not returned within the limit.
        BlockedByHungCall: a function that ran out of its time hangs and may hold the lock.
        BaseException: the exception that the function raised.
    """
    begun = threading.Event()

    def run() -> T:
        with lock:
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
