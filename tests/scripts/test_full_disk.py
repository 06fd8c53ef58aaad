"""The trial of full disks: what counts as half-written, and a command that does everything wrong."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.trials import full_disk

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("name", "content", "is_complete"),
    [
        ("a.json", b'{"a": 1}', True),
        ("a.json", b'{"a": 1', False),
        ("a.jsonl", b'{"a": 1}\n{"b": 2}\n', True),
        ("a.jsonl", b'{"a": 1}\n{"b"', False),
        ("a.png", b"\x89PNG IEND\xaeB`\x82", True),
        ("a.png", b"\x89PNG", False),
        ("a.html", b"<html></html>\n", True),
        ("a.html", b"<html>", False),
    ],
)
def test_part_of_a_file_is_told_from_a_file(tmp_path: Path, name: str, content: bytes, is_complete: bool) -> None:
    (tmp_path / name).write_bytes(content)
    assert full_disk.is_complete(tmp_path / name) is is_complete


def test_missing_file_is_not_half_written_and_a_folder_is(tmp_path: Path) -> None:
    assert full_disk.is_complete(tmp_path / "missing.json")
    assert not full_disk.is_complete(tmp_path)


@pytest.mark.slow
def test_command_that_writes_carelessly_has_all_problems(tmp_path: Path) -> None:
    if not full_disk.is_possible():
        pytest.skip("this machine lets no process mount a disk of its own (user namespaces)")
    careless = "import json, sys; json.dump(list(range(9000)), open(sys.argv[1], 'w'))"
    command = shlex.join([sys.executable, "-c", careless, "DISK/a.json"])
    trial = f"{shlex.quote(sys.executable)} -m scripts.trials disk --sizes 1 --work {tmp_path} --result a.json"
    ended = subprocess.run(f"{trial} -- {command}", shell=True, capture_output=True, text=True, check=True, cwd=ROOT)
    full, read_only = ended.stdout.splitlines()[2:]
    for row in (full, read_only):
        assert "exit code" not in row
        assert "1 lines of stack traces; no error message" in row
    assert "a.json is half-written" in full
