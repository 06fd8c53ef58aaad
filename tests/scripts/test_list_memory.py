"""The script that measures the memory of training lists, on a small file."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from scripts.list_memory import app


@pytest.mark.slow
def test_lists_in_their_file_take_less_memory_than_in_memory(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["--lists", "1000", "--windows", "50", "--out", str(tmp_path / "lists.jsonl")])
    assert done.exit_code == 0, done.output
    rows = [line.split("|")[1:-1] for line in done.output.splitlines() if line.startswith("| in ")]
    held, in_file = (float(row[1]) for row in rows)
    assert [row[0].strip() for row in rows] == ["in memory", "in file"]
    assert in_file < held / 2
