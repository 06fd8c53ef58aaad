"""Typer applications of the installed commands: help in plain text, with examples and undivided values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand

#: Looks like a hyphen, and no line is broken at it.
_NON_BREAKING_HYPHEN = "\u2011"
#: No sentence has so many characters.
_LONGEST = 1000


def example_in(docstring: str | None) -> str:
    """The commands in the last paragraph of the docstring of a command's module."""
    return (docstring or "").strip().rpartition("\n\n")[2]


class Command(TyperCommand):
    """A command whose help breaks no line inside a value such as pe-rank, and asks for <int>, not for <int range>."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        write_dl = formatter.write_dl
        formatter.write_dl = lambda rows, *args, **kwargs: write_dl([*map(_undivided, rows)], *args, **kwargs)
        super().format_help(ctx, formatter)
        formatter.buffer = [text.replace(_NON_BREAKING_HYPHEN, "-") for text in formatter.buffer]

    def get_short_help_str(self, limit: int = 0) -> str:
        """The first sentence of the help, which the list of commands shows whole."""
        return super().get_short_help_str(_LONGEST)


def _undivided(row: tuple[str, str]) -> tuple[str, str]:
    """A row of the help, an option with its text, without places where a value could be divided."""
    option, text = row
    return option.replace(" range>", ">"), text.replace("-", _NON_BREAKING_HYPHEN)


class CommandApp(typer.Typer):
    """A typer application of one command or several."""

    def __init__(self, add_completion: bool = False, **settings: Any) -> None:
        super().__init__(
            add_completion=add_completion, pretty_exceptions_enable=False, rich_markup_mode=None, **settings
        )

    def command(  # type: ignore[override]
        self, name: str | None = None, *, example: str, cls: type[Command] = Command, **settings: Any
    ) -> Callable[..., Any]:
        """See typer.Typer.command. The help ends with the `example`, in which each line is a command."""
        lines = "\n".join(f"  {line}" for line in example.strip().splitlines())
        # A paragraph that begins with \b keeps its lines.
        return super().command(name, cls=cls, epilog=f"\b\nExample:\n{lines}", **settings)
