"""The console of the commands, which wraps lines only on a terminal; errors and exit codes of commands."""

from __future__ import annotations

import errno
import io
import logging
import os
import sys
from collections.abc import Callable, Iterator
from typing import IO, Any, NoReturn

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rerank.errors import CheckpointError, ModelServerUnfit, RerankError, SelfTestFailed
from rerank.util.signals import end_at_once, ending_signals
from rerank.util.terminal import EscapingFormatter, escape_control_chars

_USUAL_WIDTH = 80
#: The call was right, but something failed, such as a model that cannot be loaded, a full disk, or a bug.
FAILED = 1
#: The caller's mistake, such as wrong flags.
USAGE_ERROR = 2
#: The service does not answer.
_UNREACHABLE = 3
#: The deadline of the call has passed.
_LATE = 4
#: The service is overloaded.
_REFUSED = 5
#: gRPC status of an error → exit code; other statuses have FAILED. docs/reference/statuses.md has the same table.
_EXIT_CODES = {
    **dict.fromkeys(("INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION", "UNIMPLEMENTED"), USAGE_ERROR),
    **dict.fromkeys(("UNAUTHENTICATED", "PERMISSION_DENIED"), USAGE_ERROR),
    "UNAVAILABLE": _UNREACHABLE,
    "DEADLINE_EXCEEDED": _LATE,
    "RESOURCE_EXHAUSTED": _REFUSED,
}
#: Errors of standard output: a pipe whose reader has ended, such as `head`, and a full or broken disk.
_OUTPUT_LOST = {errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
#: Part of the message of Python's `tempfile` if it finds no folder.
_NO_TEMPORARY = "No usable temporary directory"
_BROKEN_MODELS = {error.reason for error in (CheckpointError, ModelServerUnfit, SelfTestFailed)}
_OUR_PACKAGES = {"rerank", "rerank_eval", "rerank_training"}
#: Package → the extra that installs it.
_EXTRAS = {"mcp": "mcp", "ray": "ray", "scipy": "eval", "starlette": "http", "uvicorn": "http"}


class PlainConsole(Console):
    """A console that prints text unchanged, because passages and queries can look like markup.

    Only control characters are escaped, as in \\u001b, because passages, ids and messages come from others. For output
    that is not a terminal, which programs read, no line is wrapped or cut, a table is printed as tab-separated values,
    and its title as a note.

    Args:
        stderr: write to standard error instead of standard output.
        file: write to this file instead.
    """

    def __init__(self, stderr: bool = False, file: IO[str] | None = None) -> None:
        super().__init__(stderr=stderr, file=file, markup=False, emoji=False, highlight=False)

    def print(self, *objects: Any, **options: Any) -> None:
        if self.is_terminal:
            super().print(*objects, **options)
            return
        for table in objects:
            if isinstance(table, Table) and table.title:
                self.note(str(table.title))
        texts = ("\n".join(_lines(shown)) if isinstance(shown, Table) else str(shown) for shown in objects)
        print(*map(escape_control_chars, texts), file=self.file)  # rich would expand the tabs

    def note(self, text: str) -> None:
        """Prints a line about the output; on standard error if standard output is not a terminal."""
        if self.is_terminal or self.file is not sys.stdout:
            self.print(text, soft_wrap=True)
        else:
            sys.stdout.flush()
            PlainConsole(stderr=True).print(text, soft_wrap=True)

    @property
    def is_narrow(self) -> bool:
        """True for a terminal of less than 80 columns."""
        return self.is_terminal and self.width < _USUAL_WIDTH

    def render_str(self, text: str, **options: Any) -> Text:
        """See rich.console.Console.render_str, which renders lines, cells and titles."""
        return super().render_str(escape_control_chars(text), **options)


def _lines(table: Table) -> Iterator[str]:
    """The headers and the rows of a table, each on one line with tabs between the cells."""
    if table.show_header:
        yield "\t".join(_one_line(column.header) for column in table.columns)
    for row in zip(*(column.cells for column in table.columns), strict=True):
        yield "\t".join(map(_one_line, row))


def _one_line(cell: object) -> str:
    return " ".join(str(cell).split())


console = PlainConsole()


def quiet_libraries() -> None:
    """Makes libraries log only warnings and errors, unless the level is debug.

    Their lines of level info, such as each call of the Hugging Face hub, are useless to a user.
    """
    root = logging.getLogger()
    if logging.INFO <= root.level < logging.WARNING:
        for name in _OUR_PACKAGES:
            logging.getLogger(name).setLevel(root.level)
        root.setLevel(logging.WARNING)


def run(command: Callable[[], object]) -> None:
    """Runs a command. A RerankError, or a package that is not installed, ends it with an error line and an exit code.

    If the reader of its output has ended, the command exits with 1 and without a line. SIGTERM ends a command even if
    it is PID 1, as in a container.
    """
    # Set before gRPC is imported. Its log repeats its exceptions, any client of a service can write to it, and it
    # reports sockets that this package closes as errors.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    if os.getpid() == 1:
        end_at_once(ending_signals())
    if isinstance(sys.stdout, io.TextIOWrapper):  # prints 日 as \u65e5 if the locale lacks the character
        sys.stdout.reconfigure(errors="backslashreplace")
    if logging.lastResort:  # writes the warnings of commands that do not set up a log
        logging.lastResort.setFormatter(EscapingFormatter())
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
        if package in _OUR_PACKAGES:
            raise  # this is a bug
        extra = f"[{_EXTRAS[package]}]" if package in _EXTRAS else ""
        _fail(f"this command needs {package}, which is not installed; install rerank-listwise{extra}", USAGE_ERROR)


def exit_code(error: RerankError) -> int:
    """The exit code of a command that ends with an error."""
    return FAILED if error.reason in _BROKEN_MODELS else _EXIT_CODES.get(error.grpc_status, FAILED)


def _fail(message: str, code: int) -> NoReturn:
    PlainConsole(stderr=True).print(f"error: {message}", soft_wrap=True)
    sys.exit(code)
