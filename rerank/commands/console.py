"""The console of the commands: tables and wrapped lines on a terminal, unchanged lines everywhere else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Any

from rich.console import Console
from rich.table import Table


class PlainConsole(Console):
    """A console that prints text unchanged, because passages and queries can look like markup.

    Output that is not a terminal is read by programs and kept in files: no line is wrapped or cut, and a table is
    printed as tab-separated values, without padding.

    Args:
        stderr: write to standard error instead of standard output.
        file: write to this file instead.
    """

    def __init__(self, stderr: bool = False, file: IO[str] | None = None) -> None:
        super().__init__(stderr=stderr, file=file, markup=False, emoji=False, highlight=False)

    def print(self, *objects: Any, **options: Any) -> None:
        """See rich.console.Console.print."""
        if self.is_terminal:
            super().print(*objects, **options)
        else:
            texts = ("\n".join(_lines(each)) if isinstance(each, Table) else str(each) for each in objects)
            print(*texts, file=self.file)  # rich would expand the tabs


def _lines(table: Table) -> Iterator[str]:
    """The title, the headers and the rows of a table, each on one line with tabs between the cells."""
    if table.title:
        yield str(table.title)
    if table.show_header:
        yield "\t".join(_one_line(column.header) for column in table.columns)
    for row in zip(*(column.cells for column in table.columns), strict=True):
        yield "\t".join(map(_one_line, row))


def _one_line(cell: object) -> str:
    return " ".join(str(cell).split())
