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
    done = run_module("eval.beir", "--collection", tmp_path, "--index", index_folder, "--out", out)
    assert done.returncode == 0, done.stderr
    measures = json.loads((out / "measures.json").read_text(encoding="utf-8"))
    assert measures["mean"]["nDCG@10"] == 1.0
    assert measures["settings"]["ranker"] == "pe-rank"
    assert len((out / "run.trec").read_text(encoding="utf-8").splitlines()) == 12
    assert "nDCG@10" in done.stdout


def test_wrong_input_ends_with_one_line(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    done = run_module("eval.trec_dl", "--requests", missing, "--qrels", missing, "--out", tmp_path / "out")
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "cannot be read" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.shared
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("ranker", "expected"), [("identity", 0.5058), ("pe-rank", 0.6424)])
def test_dl19_figures(shared: Path, tmp_path: Path, ranker: str, expected: float) -> None:
    """BM25's order; and the untrained PE-Rank, sliding 20/10, which equals cosine."""
    data = shared / "trec-dl-2019"
    sliding = ("--strategy", "sliding", "--window-size", 20, "--stride", 10)
    files = ("--requests", data / "requests.jsonl", "--qrels", data / "qrels.txt", "--out", tmp_path)
    done = run_module("eval.trec_dl", *files, "--ranker", ranker, *sliding)
    assert done.returncode == 0, done.stderr
    measures = json.loads((tmp_path / "measures.json").read_text(encoding="utf-8"))
    assert measures["mean"]["nDCG@10"] == pytest.approx(expected, abs=0.002 if ranker == "pe-rank" else 0.00005)
