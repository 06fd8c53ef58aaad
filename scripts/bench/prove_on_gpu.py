"""Proof on a GPU: compares and measures, and writes a page of figures.

    scripts/prove_on_gpu.sh OUT [WEIGHTS]

Writes OUT/gpu.md after each section, so that what was measured stays if the time runs out. Without a GPU all models are
tiny: that shows only that the proof runs.
"""

from __future__ import annotations

import logging
import subprocess
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import torch
import transformers
import typer

from rerank.models.loading import pick_device
from rerank.util.files import atomic_file
from scripts.bench.gpu import Proof, measure_agreement, measure_first, measure_matrices
from scripts.bench.timing import Values, figure_of
from scripts.bench.training import measure_train_first, measure_training

log = logging.getLogger(__name__)

#: The sections in the order in which they run.
SECTIONS: dict[str, Callable[[Proof], Values]] = {
    "Matrix product": measure_matrices,
    "Rankers against the CPU": measure_agreement,
    "A training step": measure_training,
    "Steps of train-first with LoRA": measure_train_first,
    "FIRST against the floor": measure_first,
}

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    out: Annotated[Path, typer.Argument(help="Folder for gpu.md.")],
    weights: Annotated[
        Path | None, typer.Argument(help="Folder of a causal LM, to compare instead of a random one.")
    ] = None,
) -> None:
    """Compare every ranker with its results on the CPU, measure, and write what was found."""
    out.mkdir(parents=True, exist_ok=True)
    device, has_failed = pick_device(), False
    page = f"# Proof on a GPU\n\n{_facts(device)}\n"
    with tempfile.TemporaryDirectory(prefix="prove-on-gpu-") as folder:
        proof = Proof(device, Path(folder), weights)
        for name, measure in SECTIONS.items():
            start = time.monotonic()
            try:
                found = _table(measure(proof))
            except Exception as error:  # a failure does not keep the others from being measured
                log.exception("%s failed", name)
                found, has_failed = f"FAILED: {error!r}", True
            page += f"\n## {name}\n\n{found}\n"
            with atomic_file(out / "gpu.md") as path:
                path.write_text(page, encoding="utf-8")
            print(f"{name}: {time.monotonic() - start:.0f} s", flush=True)
    if has_failed:
        raise typer.Exit(1)


def _table(values: Values) -> str:
    lines = ["| What | Median | Range |", "| --- | ---: | --- |"]
    for name, row in ((name, figure_of(row)) for name, row in values.items()):
        lines.append(f"| {name} | {row['median']:.4g} | {row['min']:.4g} to {row['max']:.4g} |")
    return "\n".join(lines)


def _facts(device: torch.device) -> str:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU: tiny models, no proof"
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    return f"{name}; {versions}; commit {commit.stdout.strip() or 'unknown'}; {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"


if __name__ == "__main__":
    app()
