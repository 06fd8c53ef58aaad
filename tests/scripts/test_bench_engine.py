"""The benchmark runs on its smallest models and writes what it promises. Times are not looked at."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAMES = {
    "first_vs_generating the permutation",
    "first_vs_generate one token",
    "first_vs_all-position logits",
    "packed_vs_padded, 8 windows",
    *(f"pe_dynamic_vs_{other}, {n}" for other in ("generate", "text twin") for n in (1, 8)),
    *(f"pe_one_step_vs_text twin, {n}" for n in (1, 8)),
    *(f"at_once_vs_in a row, {n} pe" for n in (2, 4, 8)),
    "at_once_vs_in a row, 8 first",
    "short p99_vs_fifo, load 0.85",
    "useful work, load 2, deadlines of 2 s",
    *(f"service_vs_engine, {model}" for model in ("first", "pe")),
    *(f"growth, {n} candidates, pe" for n in (20, 100)),
    *(f"growth, {n} words a passage, first" for n in (4, 8)),
    *(f"growth, {n} requests at once, each" for n in (1, 10, 100)),
    "memory after 2,000 requests",
}


def test_quick_benchmark_writes_every_figure_and_a_plot(tmp_path: Path) -> None:
    out, picture = tmp_path / "bench.json", tmp_path / "bench.png"
    groups = "first,packed,pe,at_once,scheduler,service,growth,memory"
    command = [sys.executable, "scripts/bench_engine.py", "--quick", "--only", groups]
    command += ["--out", str(out), "--plot-to", str(picture)]
    subprocess.run(command, check=True, cwd=ROOT, env=os.environ | {"CUDA_VISIBLE_DEVICES": ""}, timeout=280)
    figures = json.loads(out.read_text(encoding="utf-8"))
    assert figures.keys() == NAMES
    for own in figures.values():
        assert own.keys() == {"median", "min", "max", "unit"}
        assert own["unit"] in {"times", "ms", "MB", "share"}
        assert own["min"] <= own["median"] <= own["max"]
        assert math.isfinite(own["max"])
    assert picture.read_bytes().startswith(b"\x89PNG")
