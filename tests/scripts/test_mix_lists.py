"""Mixes of training lists: disjoint random samples, the same for the same seed."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.reproduce.mix_lists import main


@pytest.fixture
def lists(tmp_path: Path) -> Path:
    (tmp_path / "a.jsonl").write_text("".join(f"a{n}\n" for n in range(20)), encoding="utf-8")
    (tmp_path / "b.jsonl").write_text("".join(f"b{n}\n" for n in range(5)), encoding="utf-8")
    return tmp_path


def mixed(lists: Path, *samples: str, seed: int = 1) -> list[str]:
    main([str(lists / sample) for sample in samples], lists / "out.jsonl", seed)
    return (lists / "out.jsonl").read_text(encoding="utf-8").split()


def test_mix_holds_the_counts_of_each_file(lists: Path) -> None:
    found = mixed(lists, "a.jsonl:7", "b.jsonl:5")
    assert len(set(found)) == len(found) == 12
    assert sum(line.startswith("a") for line in found) == 7
