"""Benchmark of the rankers, compared with the usual implementations.

    python -m scripts.bench [--requests requests.jsonl] [--only first,pe] [--quick]

Variants run in turn in one process with one torch thread, and CPU time of the process is compared, so that other work
on the machine has little effect. Weights are random: time does not depend on them. A figure is the other
implementation's time divided by ours, or its name says what it is. `compare_checkouts` measures what the service
adds.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Annotated

import torch
import typer

from rerank.commands.run import run
from rerank.errors import ConfigError
from scripts.bench.prompts import measure_prompts
from scripts.bench.rankers import measure_e2rank, measure_first, measure_pe_rank
from scripts.bench.shapes import measure_kernels, measure_shapes
from scripts.bench.workload import Values, Workload

#: Measurements by the name that --only takes.
GROUPS: dict[str, Callable[[Workload], Values]] = {
    "first": measure_first,
    "pe": measure_pe_rank,
    "e2rank": measure_e2rank,
    "shapes": measure_shapes,
    "kernels": measure_kernels,
    "prompts": measure_prompts,
}

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    requests: Annotated[
        Path | None,
        typer.Option(help="RankLLM request file (JSONL), whose first 43 lists are read; default: random texts."),
    ] = None,
    only: Annotated[str, typer.Option(help=f"Measurements to run, of {','.join(GROUPS)}.")] = ",".join(GROUPS),
    repeats: Annotated[int, typer.Option(min=1, help="How often each variant is timed.")] = 5,
    quick: Annotated[
        bool, typer.Option("--quick", help="Tiny models and short passages, to show that the benchmark runs.")
    ] = False,
) -> None:
    """Measure, and print the median of each figure and its range."""
    groups = only.split(",")
    if unknown := [group for group in groups if group not in GROUPS]:
        raise ConfigError(f"--only {','.join(unknown)}: choose from {','.join(GROUPS)}")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        workload = Workload(Path(folder), requests, quick, 1 if quick else repeats)
        for group in groups:
            for name, values in GROUPS[group](workload).items():
                figures = (median(values), min(values), max(values))
                print(f"{name:45}", *(f"{figure:9.3f}" for figure in figures), flush=True)


if __name__ == "__main__":
    run(app)
