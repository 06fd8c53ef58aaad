"""The figures in eval/expected/ are what the commands give."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from eval import beir, trec_dl
from rerank.collections import open_collection
from rerank.encoder import Encoder
from rerank.retrieval.index import build_index

EXPECTED = Path(__file__).parents[2] / "eval" / "expected"


def expected(name: str) -> Any:
    return json.loads((EXPECTED / f"{name}.json").read_text(encoding="utf-8"))


def mean_and_queries(folder: Path) -> tuple[float, int]:
    measures = json.loads((folder / "measures.json").read_text(encoding="utf-8"))
    return measures["mean"]["nDCG@10"], len(measures["per_query"])


def test_every_file_names_its_command_and_tolerance() -> None:
    for path in EXPECTED.glob("*.json"):
        found = json.loads(path.read_text(encoding="utf-8"))
        assert found.keys() == {"data", "command", "queries", "tolerance", "nDCG@10"}, path.name
        assert 0 < found["tolerance"] < 0.01


@pytest.mark.shared
@pytest.mark.timeout(900)
@pytest.mark.parametrize("year", ["2019", "2021"])
def test_trec_dl_figures(shared: Path, tmp_path: Path, year: str) -> None:
    figures, data = expected(f"trec-dl-{year}"), shared / f"trec-dl-{year}"
    files = ["--requests", str(data / "requests.jsonl"), "--qrels", str(data / "qrels.txt"), "--out", str(tmp_path)]
    rankers = ["--ranker", "identity", "--ranker", "oracle"]
    done = CliRunner().invoke(trec_dl.app, [*files, *rankers, "--no-plots"])
    assert done.exit_code == 0, done.output
    for name in ("identity", "oracle"):
        mean, queries = mean_and_queries(tmp_path / name)
        assert queries == figures["queries"]
        assert mean == pytest.approx(figures["nDCG@10"][name], abs=figures["tolerance"])


@pytest.mark.shared
@pytest.mark.timeout(900)
def test_cranfield_figures(shared: Path, tmp_path: Path, encoder: Encoder) -> None:
    figures, folder = expected("cranfield"), shared / "cranfield"
    build_index(open_collection(str(folder)), tmp_path / "index", encoder, hnsw=False, report=lambda *_: None)
    for first_stage, value in figures["nDCG@10"].items():
        out = tmp_path / first_stage
        files = ["--collection", str(folder), "--index", str(tmp_path / "index"), "--out", str(out)]
        done = CliRunner().invoke(
            beir.app, [*files, "--ranker", "identity", "--first-stage", first_stage, "--no-plots"]
        )
        assert done.exit_code == 0, done.output
        mean, queries = mean_and_queries(out)
        assert queries == figures["queries"]
        assert mean == pytest.approx(value, abs=figures["tolerance"])
