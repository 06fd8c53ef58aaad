"""The evaluation commands refuse wrong input with one line, and their help imports little."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rerank_eval.commands import eval_trec_dl

HEAVY = ("torch", "transformers", "sentence_transformers", "scipy", "ir_measures", "grpc", "faiss")


def test_unreadable_file_ends_with_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    missing = str(tmp_path / "missing")
    arguments = ["--requests", missing, "--qrels", missing, "--out", str(tmp_path / "out")]
    monkeypatch.setattr("sys.argv", ["eval-trec-dl", *arguments])
    with pytest.raises(SystemExit) as exit_:
        eval_trec_dl()
    assert exit_.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert "cannot be read" in error
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["eval_trec_dl", "eval_beir"])
def test_help_imports_no_heavy_package(command: str) -> None:
    code = f"""
import json, sys
from rerank_eval.commands import {command}
sys.argv[1:] = ["--help"]
try:
    {command}()
finally:
    print(json.dumps([name for name in {HEAVY} if name in sys.modules]))
"""
    wide = os.environ | {"COLUMNS": "80"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=wide)
    help_text, _, imported = done.stdout.strip().rpartition("\n")
    assert json.loads(imported) == [], done.stderr
    assert "NAME=RANKER:PATH" in help_text
