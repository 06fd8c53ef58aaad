"""Writes a table into a Markdown file, between two comments."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

BEGIN, END = "<!-- clients: written by make sdk-tests -->", "<!-- end of clients -->"


def write_table(path: Path, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Replaces what is between BEGIN and END. Raises: ValueError if the file does not have both."""
    before, _, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"{path} does not have the lines {BEGIN} and {END}")
    lines = [_line(columns), _line(["---"] * len(columns)), *map(_line, rows)]
    path.write_text(f"{before}{BEGIN}\n\n" + "\n".join(lines) + f"\n\n{END}{after}", encoding="utf-8")


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
