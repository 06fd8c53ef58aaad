"""Proof on a GPU: compares and measures, and writes a page and a file of figures.

    scripts/prove_on_gpu.sh OUT [WEIGHTS]

Writes OUT/gpu.md and OUT/gpu.json after each section, so that what was measured stays if the time runs out. Without a
GPU all models are tiny: that shows only that the proof runs.
"""

from __future__ import annotations

import json
import logging
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import torch
import transformers
import typer

from rerank.models.loading import pick_device
from rerank.util.files import atomic_file
from scripts.bench.gpu import Proof, measure_agreement, measure_first, measure_matrices, measure_training
from scripts.bench.timing import Values, figure_of

log = logging.getLogger(__name__)

#: The sections in the order in which they run.
SECTIONS: dict[str, Callable[[Proof], Values]] = {
    "Matrix product": measure_matrices,
    "Rankers against the CPU": measure_agreement,
    "A training step": measure_training,
    "FIRST against the floor": measure_first,
}
#: A section starts only if so many seconds are left.
_LEAST_S = 45.0

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
    weights: Annotated[
        Path | None, typer.Argument(help="Folder of a causal LM, to compare instead of a random one.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=1, help="Time for all sections; later ones do not start.")] = 500.0,
) -> None:
    """Compare every ranker with its results on the CPU, measure, and write what was found."""
    end_s = time.monotonic() + seconds
    out.mkdir(parents=True, exist_ok=True)
    device = pick_device()
    report = _Report(_facts(device))
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
        return {name: figure_of(value) for name, value in measure(proof).items()}
    except Exception as error:
        log.exception("%s failed", measure.__name__)
        return f"FAILED: {error!r}"


def _facts(device: torch.device) -> dict[str, str]:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU: tiny models, no proof",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "commit": commit.stdout.strip() or "unknown",
        "time": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }


if __name__ == "__main__":
    app()
