"""The console of the commands: tables and wrapped lines on a terminal, unchanged lines everywhere else."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import IO, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rerank.util.terminal import visible

_USUAL_WIDTH = 80


class PlainConsole(Console):
    """A console that prints text unchanged, because passages and queries can look like markup.

    Only what a terminal obeys is shown as \\u001b and the like, because passages, ids and messages come from others.
    Output that is not a terminal is read by programs and kept in files: no line is wrapped or cut, and a table is
    printed as tab-separated values, without padding. Its title is a note.

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
        print(*map(visible, texts), file=self.file)  # rich would expand the tabs

    def note(self, text: str) -> None:
        """Prints a line about the output: on standard error if the output is read by a program."""
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
        return super().render_str(visible(text), **options)


def _lines(table: Table) -> Iterator[str]:
    """The headers and the rows of a table, each on one line with tabs between the cells."""
    if table.show_header:
        yield "\t".join(_one_line(column.header) for column in table.columns)
    for row in zip(*(column.cells for column in table.columns), strict=True):
        yield "\t".join(map(_one_line, row))


def _one_line(cell: object) -> str:
    return " ".join(str(cell).split())
