"""The script evaluates checkpoints in the published layouts and prints their figures beside the published ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.causal_lms import write_causal_lm
from tests.small_tokenizers import metaspace

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[2] / "scripts" / "reproduce" / "published.sh"

#: Runs instead of Python: records the arguments of the evaluation and writes a result; other commands run as they are.
RECORDER = """
import json, pathlib, subprocess, sys
if sys.argv[1:3] != ["-m", "rerank_eval.trec_dl"]:
    sys.exit(subprocess.call([sys.executable, *sys.argv[1:]]))
out = pathlib.Path(sys.argv[sys.argv.index("--out") + 1])
out.mkdir(parents=True)
(out / "measures.json").write_text('{"mean": {"nDCG@10": 0.25}}')
(out / "arguments.json").write_text(json.dumps(sys.argv[3:]))
"""


def run_script(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = os.environ | {"PYTHON": sys.executable} | environment
    command = ["bash", str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=variables, timeout=280)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A DL 2019 of two queries."""
    folder = tmp_path / "data" / "trec-dl-2019"
    folder.mkdir(parents=True)
    candidates = [{"docid": f"d{n}", "score": 5.0 - n, "doc": {"contents": f"text {n}"}} for n in range(4)]
    rows = [{"query": {"text": f"query {q}", "qid": q}, "candidates": candidates} for q in ("1", "2")]
    (folder / "requests.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (folder / "qrels.txt").write_text("1 0 d3 2\n2 0 d0 3\n", encoding="utf-8")
    return folder.parent


def test_checkpoint_is_evaluated(data: Path, tmp_path: Path) -> None:
    """A small random Mistral takes the place of FirstMistral; the service and the evaluation are real."""
    checkpoint, template = tmp_path / "checkpoint", tmp_path / "template.yaml"
    write_causal_lm(checkpoint, "mistral", metaspace("instruct"))
    parts = {"prefix": "{num} {query} ", "body": "[{rank}] {candidate}\n", "suffix": "best of {num}: "}
    template.write_text(yaml.safe_dump(parts), encoding="utf-8")
    done = run_script("first-mistral", checkpoint, template, data, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    measures = json.loads(
        (tmp_path / "out" / "first-mistral-trec-dl-2019" / "measures.json").read_text(encoding="utf-8")
    )
    assert set(measures["per_query"]) == {"1", "2"}
    assert measures["settings"]["ranker"] == "first"
    assert f"trec-dl-2019: published 0.7294, here {round(measures['mean']['nDCG@10'], 4)}" in done.stdout
    assert "trec-dl-2020: no" in done.stdout


@pytest.mark.parametrize("system", ["first-mistral", "rank-zephyr", "pe-rank-mistral-jina"])
def test_system_is_evaluated_with_its_profile(system: str, data: Path, tmp_path: Path) -> None:
    recorder, python = tmp_path / "recorder.py", tmp_path / "python"
    recorder.write_text(RECORDER, encoding="utf-8")
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{recorder}" "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    done = run_script(system, "CHECKPOINT", "TEMPLATE", data, tmp_path / "out", PYTHON=str(python), ENCODER="ENCODER")
    assert done.returncode == 0, done.stderr
    out = tmp_path / "out" / f"{system}-trec-dl-2019"
    arguments = json.loads((out / "arguments.json").read_text(encoding="utf-8"))
    flags = dict(zip(arguments[::2], arguments[1::2], strict=True))
    assert flags == {
        "--requests": str(data / "trec-dl-2019" / "requests.jsonl"),
        "--qrels": str(data / "trec-dl-2019" / "qrels.txt"),
        "--config": str(tmp_path / "out" / "service.yaml"),
        "--model": system,
        "--precision": "float32",
        "--out": str(out),
    }
    config = yaml.safe_load((tmp_path / "out" / "service.yaml").read_text(encoding="utf-8"))
    (model,) = config["models"]
    assert (config["encoder"], model["profile"], model["path"], model["template"]) == (
        "ENCODER", system, "CHECKPOINT", "TEMPLATE",
    )  # fmt: skip
    assert "here 0.25" in done.stdout
