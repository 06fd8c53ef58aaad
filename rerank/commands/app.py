"""Typer applications of the installed commands: help in plain text, with examples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand

from rerank.util.pydantic_words import plain_words

#: Wider than any sentence, so that help is not wrapped.
_LONGEST = 1000


class Command(TyperCommand):
    """A command that the list of commands shows with its first sentence."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:  # of a value, in the words of pydantic
            error.message = plain_words(error.message)
            raise

    def get_short_help_str(self, limit: int = 0) -> str:
        return super().get_short_help_str(_LONGEST)


class CommandApp(typer.Typer):
    """A typer application of one command or several."""

    def __init__(self, add_completion: bool = False, **settings: Any) -> None:
        super().__init__(
            add_completion=add_completion, pretty_exceptions_enable=False, rich_markup_mode=None, **settings
        )

    def command(  # type: ignore[override]
        self, name: str | None = None, *, example: str, cls: type[Command] = Command, **settings: Any
    ) -> Callable[..., Any]:
        """See typer.Typer.command. The help ends with the `example`; each of its lines is a command."""
        lines = "\n".join(f"  {line}" for line in example.strip().splitlines())
        # A paragraph that begins with \b keeps its lines.
        return super().command(name, cls=cls, epilog=f"\b\nExample:\n{lines}", **settings)
