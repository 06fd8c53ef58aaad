"""The console of the commands, and their exit codes."""

from __future__ import annotations

import errno
import io
import logging
import os
import sys
from collections.abc import Callable
from typing import NoReturn

from rerank.commands.console import PlainConsole
from rerank.errors import CheckpointError, ModelServerUnfit, RerankError, SelfTestFailed
from rerank.util.terminal import VisibleFormatter

console = PlainConsole()

#: The call was right, but something failed, such as a model that cannot be loaded, a full disk, or a bug.
FAILED = 1
#: The caller's mistake, as wrong flags are.
WRONG_CALL = 2
_UNREACHABLE, _LATE, _REFUSED = 3, 4, 5
#: gRPC status of an error → exit code; of any other status: FAILED. docs/reference/statuses.md has the same table.
_EXIT_CODES = {
    **dict.fromkeys(("INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION", "UNIMPLEMENTED"), WRONG_CALL),
    **dict.fromkeys(("UNAUTHENTICATED", "PERMISSION_DENIED"), WRONG_CALL),
    "UNAVAILABLE": _UNREACHABLE,
    "DEADLINE_EXCEEDED": _LATE,
    "RESOURCE_EXHAUSTED": _REFUSED,
}
#: Errors of standard output: a pipe whose reader has ended, as `head` does, and a full or broken disk.
_OUTPUT_LOST = {errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
#: Part of the message of Python's `tempfile` if it finds no folder.
_NO_TEMPORARY = "No usable temporary directory"
_BROKEN_MODELS = {error.reason for error in (CheckpointError, ModelServerUnfit, SelfTestFailed)}
_OURS = {"rerank", "rerank_eval", "rerank_training"}
#: Package → the extra that is sure to install it.
_EXTRAS = {"mcp": "mcp", "ray": "ray", "scipy": "eval", "starlette": "http", "uvicorn": "http"}


def quiet_libraries() -> None:
    """Keeps libraries from logging less than warnings, unless the log is for debugging.

    Their lines of level info, such as each call of the Hugging Face hub, say nothing to a user. The root logger gets
    the level of our packages.
    """
    root = logging.getLogger()
    if logging.INFO <= root.level < logging.WARNING:
        for name in _OURS:
            logging.getLogger(name).setLevel(root.level)
        root.setLevel(logging.WARNING)


def run(command: Callable[[], object]) -> None:
    """Runs a command. A RerankError or a package that is not installed ends it with one line and an exit code.

    A command whose output nobody reads any more ends with 1 and without a line.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):  # shows 日 as \u65e5 where the locale has no such character
        sys.stdout.reconfigure(errors="backslashreplace")
    if logging.lastResort:  # writes the warnings of commands that do not set up a log
        logging.lastResort.setFormatter(VisibleFormatter())
    try:
        try:
            command()
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except OSError as error:
        if error.errno == errno.ENOENT and _NO_TEMPORARY in str(error):
            _fail(f"{error.strerror}; give one that can be written in TMPDIR", FAILED)
        if error.filename is not None or error.errno not in _OUTPUT_LOST:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python writes the rest of its buffer when it ends
        if error.errno == errno.EPIPE:
            sys.exit(FAILED)
        _fail(f"standard output cannot be written: {error.strerror}; send it elsewhere", FAILED)
    except RerankError as error:
        _fail(str(error), exit_code(error))
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in _OURS:
            raise  # this is a bug
        extra = f"[{_EXTRAS[package]}]" if package in _EXTRAS else ""
        _fail(f"this command needs {package}, which is not installed; install rerank-listwise{extra}", WRONG_CALL)


def exit_code(error: RerankError) -> int:
    """The exit code of a command that ends with an error."""
    return FAILED if error.reason in _BROKEN_MODELS else _EXIT_CODES.get(error.grpc_status, FAILED)


def _fail(message: str, code: int) -> NoReturn:
    PlainConsole(stderr=True).print(f"error: {message}", soft_wrap=True)
    sys.exit(code)
