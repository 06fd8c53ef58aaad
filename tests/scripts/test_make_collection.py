"""Large collections for measuring: the number, the lengths and the words asked for, the same for the same seed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer

from rerank.collections import open_collection
from scripts.bench.make_collection import main


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    rows = ({"_id": str(row), "text": " ".join(f"w{row}-{n}" for n in range(40))} for row in range(30))
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder


def made(source: Path, name: str, **options: int) -> tuple[list[str], list[str]]:
    """Texts of the passages and of the queries."""
    out = source.parent / name
    main([source], out, **{"passages": 100, "words": 10, "queries": 5, "seed": 0} | options)
    lines = (out / "queries.jsonl").read_text(encoding="utf-8").splitlines()
    return [p.text for p in open_collection(str(out)).passages()], [json.loads(line)["text"] for line in lines]


def test_passages_have_the_lengths_asked_for_and_words_of_two_sources(source: Path) -> None:
    passages, queries = made(source, "out")
    assert (len(passages), len(queries)) == (100, 5)
    assert {len(text.split()) for text in passages} == set(range(5, 16))
    assert max(len({word.partition("-")[0] for word in text.split()}) for text in passages) == 2


def test_same_seed_gives_the_same_collection(source: Path) -> None:
    assert made(source, "a") == made(source, "b") != made(source, "c", seed=1)


def test_words_that_no_source_has_are_refused(source: Path) -> None:
    with pytest.raises(typer.BadParameter, match="use fewer --words"):
        made(source, "out", words=100)
    assert not (source.parent / "out").exists()
