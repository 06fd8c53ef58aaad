"""Signals that end a process at once, even while a library holds the interpreter, and also as PID 1 of a container."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterable


def ending_signals() -> list[signal.Signals]:
    """SIGTERM, and SIGHUP unless `nohup` made this process ignore it; a terminal sends SIGHUP when it is closed."""
    is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [signal.SIGTERM] if is_ignored else [signal.SIGTERM, signal.SIGHUP]


def end_at_once(numbers: Iterable[signal.Signals]) -> None:
    """Makes each of these signals end the process from now on, without running any Python.

    The kernel does not deliver a signal without a handler to PID 1, as the ENTRYPOINT of an image is
    (pid_namespaces(7)). There the handler is `_exit` of the C library, so the exit code is the number of the signal.
    """
    for number in numbers:
        signal.signal(number, signal.SIG_DFL)
        if os.getpid() == 1:
            c_library = ctypes.CDLL(None)
            c_library.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
            c_library.signal(number, ctypes.cast(c_library._exit, ctypes.c_void_p))
