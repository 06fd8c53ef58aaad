"""Proof of a GPU in four minutes: measures what matters of the service and the trainings, and writes a table.

    scripts/prove_on_gpu.sh OUT [WEIGHTS] [--requests FILE] [--section NAME]...

Writes OUT/gpu.md after each row, so that what was measured stays if the time runs out, and the log of train-first next
to it. Weights are random and made on the device, but for a folder that is given. Without a GPU all models are tiny:
that shows only that the proof runs. One process does all but the callers' part, so that libraries are imported once; an
error of CUDA leaves the GPU unusable for it, and all later sections fail.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import subprocess
import tempfile
import time
from collections.abc import Collection
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rerank.commands.run import quiet_libraries, run
from rerank.errors import ConfigError
from scripts.bench.proof.table import Table

if TYPE_CHECKING:
    from scripts.bench.proof.setting import Proof

#: In the order of their runs: name → (module, function), and when it is ended, in seconds since the start. It may also
#: use what earlier ones leave.
SECTIONS = {
    "first": ("service:prove_first", 90),
    "pe-rank": ("service:prove_pe_rank", 125),
    "default": ("service:prove_default", 135),
    "training": ("training:prove_training", 190),
    "agreement": ("agreement:prove_agreement", 212),
    "other-models": ("service:prove_other_models", 228),
    "generation": ("service:prove_generation", 236),
}
_LAST_S = max(until_s for _, until_s in SECTIONS.values())

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    out: Annotated[Path, typer.Argument(help="Folder for gpu.md and the log.")],
    weights: Annotated[
        Path | None, typer.Argument(help="Folder of a FIRST model or another causal LM that is measured, too.")
    ] = None,
    requests: Annotated[
        Path | None, typer.Option(help="RankLLM request file (JSONL) with queries and passages; default: random words.")
    ] = None,
    section: Annotated[
        list[str] | None, typer.Option(help=f"Section to run, of {', '.join(SECTIONS)}. Repeatable.")
    ] = None,
) -> None:
    """Measure, and write a table of what was found; the exit code is 1 if something failed."""
    table = Table(out / "gpu.md")
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    if unknown := [name for name in section or () if name not in SECTIONS]:
        raise ConfigError(f"--section {' '.join(unknown)}: choose from {', '.join(SECTIONS)}")
    out.mkdir(parents=True, exist_ok=True)
    for package in ("rerank", "rerank_training"):
        logging.getLogger(package).addHandler(table)
    spawn = multiprocessing.get_context("spawn")  # a fork could not run beside CUDA
    with tempfile.TemporaryDirectory(prefix="prove-on-gpu-") as folder, ProcessPoolExecutor(1, spawn) as callers:
        callers.submit(time.sleep, 0)  # it imports while this process does
        import torch

        from scripts.bench.proof.setting import Proof

        quiet_libraries()
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        proof = Proof(device, Path(folder), out.absolute(), callers, weights, requests).measured()
        table.set_facts(_facts(proof))
        for name, until_s in _chosen(section or SECTIONS):
            module, _, function = SECTIONS[name][0].partition(":")
            prove = getattr(import_module(f"scripts.bench.proof.{module}"), function)
            table.add_section(name, partial(prove, proof), until_s)
            proof.free_memory()
    print(f"in {time.monotonic() - table.start_s:.0f} s: {out / 'gpu.md'}", flush=True)
    if table.has_failed:
        raise typer.Exit(1)


def _chosen(names: Collection[str]) -> list[tuple[str, float]]:
    """The sections of these names, and when each is ended. The last one has the time of those that do not run."""
    *others, last = (name for name in SECTIONS if name in names)
    return [*((name, SECTIONS[name][1]) for name in others), (last, _LAST_S)]


def _facts(proof: Proof) -> str:
    import torch

    found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    commit = found.stdout.strip() or os.environ.get("COMMIT") or "unknown"
    name = "CPU: tiny models, no proof" if proof.is_tiny else torch.cuda.get_device_name()
    return (
        f"{name}; torch {torch.__version__}, transformers {version('transformers')}; commit {commit}; "
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC. A large matrix product does {proof.flop_per_s / 1e12:,.3g} TFLOP/s, "
        f"a copy in memory {proof.bytes_per_s / 1e9:,.4g} GB/s. Floor: 2 FLOP for each weight of the layers and token, "
        "in a training 6, at the rate of the product. Each model is warmed up by a call before it is timed."
    )


if __name__ == "__main__":
    run(app)
