"""The script runs checkpoints of the published layouts from folder to figure; small random ones stand in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from rerank.models.encoder import Encoder
from tests.causal_lms import write_causal_lm
from tests.pe_checkpoints import SHORT, write_published
from tests.small_tokenizers import metaspace

SCRIPT = Path(__file__).parents[2] / "scripts" / "reproduce_published.sh"


def run_script(*arguments: object) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHON": sys.executable}
    command = ["bash", str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=280)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two queries of "DL 2019"."""
    folder = tmp_path / "data" / "trec-dl-2019"
    folder.mkdir(parents=True)
    candidates = [{"docid": f"d{n}", "score": 5.0 - n, "doc": {"contents": f"text {n}"}} for n in range(4)]
    rows = [{"query": {"text": f"query {q}", "qid": q}, "candidates": candidates} for q in ("1", "2")]
    (folder / "requests.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (folder / "qrels.txt").write_text("1 0 d3 2\n2 0 d0 3\n", encoding="utf-8")
    return folder.parent


@pytest.fixture
def template(tmp_path: Path) -> Path:
    path = tmp_path / "template.yaml"
    parts = {"prefix": "{num} {query} ", "body": "[{rank}] {candidate}\n", "suffix": "best of {num}: "}
    path.write_text(yaml.safe_dump(parts), encoding="utf-8")
    return path


@pytest.mark.parametrize("system", ["first-mistral", "rank-zephyr", "pe-rank"])
def test_checkpoint_is_measured(system: str, data: Path, template: Path, tmp_path: Path, encoder: Encoder) -> None:
    checkpoint = tmp_path / "checkpoint"
    if system == "pe-rank":
        write_published(checkpoint, encoder, template=SHORT)
    else:
        write_causal_lm(checkpoint, "mistral", metaspace("instruct" if system == "first-mistral" else "zephyr"))
    done = run_script(system, checkpoint, template, data, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "DL 2019: published ." in done.stdout
    measures = json.loads((tmp_path / "out" / f"{system}-2019" / "measures.json").read_text(encoding="utf-8"))
    assert set(measures["per_query"]) == {"1", "2"}
    assert measures["settings"]["ranker"] == {"first-mistral": "first", "rank-zephyr": "generation"}.get(system, system)


def test_wrong_calls_end_with_what_to_give(tmp_path: Path) -> None:
    assert "first-mistral, rank-zephyr or pe-rank" in run_script("first-mistral").stderr
    assert "is none of" in run_script("other", "a", "b", "c", "d").stderr
    assert "holds no trec-dl-YEAR" in run_script("pe-rank", "a", "", tmp_path, tmp_path / "out").stderr
