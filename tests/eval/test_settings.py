"""Settings of the evaluation commands, and what `--help` imports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rerank_eval.settings import EvaluationSettings
from rerank_eval.trec_dl import TrecDLSettings

from rerank.errors import ConfigError

HEAVY = ("torch", "transformers", "sentence_transformers", "scipy", "matplotlib", "ir_measures", "grpc", "faiss")


def test_settings_are_written_by_name() -> None:
    settings = TrecDLSettings(out=Path("o"), requests=[], ranker=["first"], depth=3)
    expected = {"out": "o", "ranker": "first", "depth": "3", "template": "", "strategy": "", "seed": "0"}
    assert expected.items() <= settings.as_strings().items()


def test_loads_are_parsed() -> None:
    assert EvaluationSettings(out=Path("o"), concurrency="1, 8,32").loads == [1, 8, 32]


@pytest.mark.parametrize(("target", "load"), [([], 1), (["a:1"], 1), (["a:1, b:1", "c:1"], 3)])
def test_load_is_by_default_one_query_for_each_service(target: list[str], load: int) -> None:
    assert EvaluationSettings(out=Path("o"), target=target).loads == [load]
    assert EvaluationSettings(out=Path("o"), target=target, concurrency="2").loads == [2]


@pytest.mark.parametrize("loads", [",", "0", "1,1", "-1", "many"])
def test_invalid_loads_are_refused(loads: str) -> None:
    with pytest.raises(ConfigError, match="expected different numbers above 0"):
        _ = EvaluationSettings(out=Path("o"), concurrency=loads).loads


@pytest.mark.parametrize("module", ["rerank_eval.trec_dl", "rerank_eval.beir"])
def test_help_imports_no_heavy_package(module: str) -> None:
    code = f"""
import json, sys
from {module} import app
try:
    app(["--help"])
finally:
    print(json.dumps([name for name in {HEAVY} if name in sys.modules]))
"""
    wide = os.environ | {"COLUMNS": "80"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=wide)
    help_text, _, imported = done.stdout.strip().rpartition("\n")
    assert json.loads(imported) == [], done.stderr
    assert "NAME=RANKER[/STRATEGY][:PATH]" in help_text


def test_evaluation_of_served_systems_imports_no_torch() -> None:
    code = "import sys, rerank_eval.reranking, rerank_eval.search; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
