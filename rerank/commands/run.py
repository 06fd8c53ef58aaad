"""The console of the commands, and how a command that fails ends."""

from __future__ import annotations

import sys
from collections.abc import Callable

from rerank.commands.display import plain_console
from rerank.errors import RerankError

console = plain_console()


def run(command: Callable[[], object]) -> None:
    """Runs a command. A RerankError ends it with one line on stderr and exit code 2."""
    try:
        command()
    except RerankError as error:
        plain_console(stderr=True).print(f"error: {error}", soft_wrap=True)
        sys.exit(2)
