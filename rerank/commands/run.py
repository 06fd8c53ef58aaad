"""The console of the commands, and how a command that fails ends."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NoReturn

from rerank.commands.console import PlainConsole
from rerank.commands.output import OutputLost, guard_output
from rerank.errors import CheckpointError, RerankError

console = PlainConsole()

_OURS = {"rerank", "rerank_eval", "rerank_training"}
#: Package → the extra that is sure to install it.
_EXTRAS = {
    "mcp": "mcp",
    "ray": "ray",
    "scipy": "eval",
    "starlette": "http",
    "uvicorn": "http",
}


def run(command: Callable[[], object]) -> None:
    """Runs a command. A RerankError or a package that is not installed ends it with one line and an exit code.

    The code is 1 for a CheckpointError: the call is right, but a model that it names cannot be loaded. It is 2 for
    everything else, as for wrong flags. A command whose output nobody reads any more ends with 1 and without a line.
    """
    guard_output()
    try:
        try:
            command()
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except OutputLost as error:
        if error.reader_has_gone:
            sys.exit(1)
        _fail(str(error))
    except CheckpointError as error:
        _fail(str(error), 1)
    except RerankError as error:
        _fail(str(error))
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in _OURS:
            raise  # this is a bug
        extra = f"[{_EXTRAS[package]}]" if package in _EXTRAS else ""
        _fail(f"this command needs {package}, which is not installed; install rerank-listwise{extra}")


def _fail(message: str, code: int = 2) -> NoReturn:
    PlainConsole(stderr=True).print(f"error: {message}", soft_wrap=True)
    sys.exit(code)
