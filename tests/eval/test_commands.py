"""The evaluation commands from start to end, over a service that they start."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


def run_module(module: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


def test_eval_beir_measures_what_was_retrieved(beir_folder: Path, index_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "qrels").mkdir()
    (tmp_path / "corpus.jsonl").symlink_to(beir_folder / "corpus.jsonl")
    (tmp_path / "qrels" / "test.tsv").write_text("q\td\ts\n1\tmoon\t1\n1\ttides\t1\n", encoding="utf-8")
    (tmp_path / "queries.jsonl").write_text(
        '{"_id": "1", "text": "the pull of the moon and tides"}\n', encoding="utf-8"
    )
    out = tmp_path / "out"
    done = run_module("rerank_eval.beir", "--collection", tmp_path, "--index", index_folder, "--out", out)
    assert done.returncode == 0, done.stderr
    measures = json.loads((out / "measures.json").read_text(encoding="utf-8"))
    assert measures["mean"]["nDCG@10"] == 1.0
    assert measures["settings"]["ranker"] == "pe-rank"
    assert len((out / "run.trec").read_text(encoding="utf-8").splitlines()) == 12
    assert "nDCG@10" in done.stdout


@pytest.mark.parametrize("module", ["rerank_eval.trec_dl", "rerank_eval.beir"])
def test_help_shows_how_a_system_is_named(module: str) -> None:
    done = run_module(module, "--help")
    assert done.returncode == 0, done.stderr
    assert "NAME=RANKER[/STRATEGY][:PATH]" in done.stdout


def test_wrong_input_ends_with_one_line(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    done = run_module("rerank_eval.trec_dl", "--requests", missing, "--qrels", missing, "--out", tmp_path / "out")
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "cannot be read" in done.stderr
    assert not (tmp_path / "out").exists()


def test_run_without_its_passages_ends_with_one_line(beir_folder: Path, tmp_path: Path) -> None:
    done = run_module("rerank_eval.beir", "--collection", beir_folder, "--ranker", "oracle", "--out", tmp_path / "out")
    assert done.returncode == 2
    assert done.stderr.startswith("error: nothing to search in: give --index DIR, --run FILE or --prebuilt NAME")
