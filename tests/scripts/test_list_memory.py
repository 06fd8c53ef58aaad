"""The script that measures the memory of training lists, on a small file."""

from __future__ import annotations

from pathlib import Path

import pytest
from rerank_training.lists.files import read_lists

from scripts.list_memory import PASSAGES, measure, write


@pytest.mark.parametrize("in_memory", [True, False])
def test_written_lists_are_measured_both_ways(tmp_path: Path, in_memory: bool) -> None:
    path = tmp_path / "lists.jsonl"
    write(path, lists=3)
    assert [len(item.passages) for item in read_lists(path)] == [PASSAGES] * 3
    found = measure(path, windows=5, in_memory=in_memory)
    assert found["memory_mb"] >= 0
    assert found["check_s"] > 0
    assert found["window_ms"] > 0
