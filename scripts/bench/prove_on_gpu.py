"""Proof on a GPU: runs the tests that need one, measures, and writes a page and a file of figures.

    scripts/prove_on_gpu.sh OUT [WEIGHTS]

Writes OUT/gpu.md and OUT/gpu.json after each section, so that what was measured stays if the time runs out. Without a
GPU all models are tiny: that shows only that the proof runs.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import torch
import typer

from rerank.commands.run import run
from rerank.models.loading import pick_device
from rerank.util.files import atomic_file
from scripts.bench.gpu import (
    Proof,
    measure_first,
    measure_load,
    measure_matrices,
    measure_pe_rank,
    measure_precisions,
    measure_weights,
)
from scripts.bench.timing import Values, figure_of

log = logging.getLogger(__name__)

#: The sections in the order in which they run.
SECTIONS: dict[str, Callable[[Proof], Values]] = {
    "Matrix product": measure_matrices,
    "FIRST": measure_first,
    "PE-Rank": measure_pe_rank,
    "Precision": measure_precisions,
    "Load through gRPC": measure_load,
    "Given weights": measure_weights,
}
#: A section starts only if so many seconds are left.
_LEAST_S = 45.0
_TESTS_S = 150.0

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass
class _Report:
    """The sections that ran, with their texts and figures."""

    facts: dict[str, str]
    sections: dict[str, str | dict[str, dict[str, float]]] = field(default_factory=dict)

    @property
    def has_failed(self) -> bool:
        return any(isinstance(found, str) and found.startswith("FAILED") for found in self.sections.values())

    def write(self, out: Path) -> None:
        texts = {"gpu.json": json.dumps({**self.facts, "sections": self.sections}, indent=1), "gpu.md": self._page()}
        for name, text in texts.items():
            with atomic_file(out / name) as path:
                path.write_text(text + "\n", encoding="utf-8")

    def _page(self) -> str:
        lines = ["# Proof on a GPU", "", *(f"- {name}: {value}" for name, value in self.facts.items())]
        for name, found in self.sections.items():
            lines += ["", f"## {name}", ""]
            if isinstance(found, str):
                lines += ["```text", found, "```"]
            else:
                lines += ["| What | Median | Range |", "| --- | ---: | --- |"]
                lines += [
                    f"| {what} | {result['median']:.4g} | {result['min']:.4g} to {result['max']:.4g} |"
                    for what, result in found.items()
                ]
        return "\n".join(lines)


@app.command()
def main(
    out: Annotated[Path, typer.Argument(help="Folder for gpu.md and gpu.json.")],
    weights: Annotated[Path | None, typer.Argument(help="Folder of a causal LM, for a section of its own.")] = None,
    tests: Annotated[Path, typer.Option(help="Folder of tests; those marked gpu run.")] = Path("tests"),
    seconds: Annotated[float, typer.Option(min=1, help="Time for all sections; later ones do not start.")] = 500.0,
) -> None:
    """Run the tests that need a GPU, measure, and write what was found."""
    end_s = time.monotonic() + seconds
    out.mkdir(parents=True, exist_ok=True)
    device = pick_device()
    report = _Report(_facts(device))
    report.sections["Tests"] = _run_tests(tests, min(_TESTS_S, seconds))
    report.write(out)
    with tempfile.TemporaryDirectory(prefix="prove-on-gpu-") as folder:
        proof = Proof(device, Path(folder), weights)
        for name, measure in SECTIONS.items():
            report.sections[name] = _section(measure, proof, end_s - time.monotonic())
            report.write(out)
            print(f"{name}: {seconds - (end_s - time.monotonic()):.0f} s", flush=True)
    if report.has_failed:
        raise typer.Exit(1)


def _section(measure: Callable[[Proof], Values], proof: Proof, left_s: float) -> str | dict[str, dict[str, float]]:
    """The figures of a section, or why there are none; a failure does not keep the others from being measured."""
    if left_s < _LEAST_S and not proof.is_tiny:
        return f"not run: {left_s:.0f} s were left"
    try:
        values = measure(proof)
    except Exception as error:
        log.exception("%s failed", measure.__name__)
        return f"FAILED: {error!r}"
    return {name: figure_of(value) for name, value in values.items()} or "not run: it was not asked for"


def _run_tests(tests: Path, limit_s: float) -> str:
    """The last line of the tests that need a GPU, which run in a process of their own."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-n0", "-p", "no:cacheprovider", str(tests)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        return f"FAILED: not done after {limit_s:.0f} s"
    last = done.stdout.strip().rpartition("\n")[2]
    return last if done.returncode == 0 else f"FAILED: {last}\n{done.stdout[-4000:]}{done.stderr[-1000:]}"


def _facts(device: torch.device) -> dict[str, str]:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU: tiny models, no proof",
        "torch": torch.__version__,
        "commit": commit.stdout.strip() or "unknown",
        "time": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }


if __name__ == "__main__":
    run(app)
