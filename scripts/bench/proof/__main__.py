"""Proof of a GPU in four minutes: measures what matters of the service and the trainings, and writes a table.

    scripts/prove_on_gpu.sh OUT [WEIGHTS] [--requests FILE] [--tokenizer DIR] [--section NAME]...

Writes OUT/gpu.md after each row, so that what was measured stays if the time runs out, and the logs of the service and
of train-first beside it. Weights are random, but for those of a folder that is given. Without a GPU all models are
tiny: that shows only that the proof runs.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Annotated

import torch
import transformers
import typer

from rerank.commands.run import quiet_libraries, run
from rerank.errors import ConfigError
from scripts.bench.proof.sections import Section, in_process, rows_of
from scripts.bench.proof.setting import Device, Proof, Row, measure_device

#: How long the rates of the device may take to measure, in seconds.
_DEVICE_S = 30
_HEAD = "| what | measured | floor | ratio |\n| --- | ---: | ---: | ---: |\n"


def _of(module: str, function: str) -> Callable[[Proof], Iterator[Row]]:
    """A function of a module that is imported with the section, so that a failure there is its own."""
    return lambda proof: getattr(import_module(f"scripts.bench.proof.{module}"), function)(proof)


#: In the order in which they run, by value.
SECTIONS = (
    Section("service", _of("service", "prove_service"), 126),
    Section("rankers", _of("agreement", "prove_agreement"), 150),
    Section("precision", _of("precision", "prove_precision"), 170),
    Section("passes", _of("passes", "prove_passes"), 194),
    Section("training", _of("training", "prove_training"), 222),
    Section("faiss", _of("vectors", "prove_vectors"), 228),
)

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    out: Annotated[Path, typer.Argument(help="Folder for gpu.md and the logs.")],
    weights: Annotated[
        Path | None, typer.Argument(help="Folder of a FIRST model or another causal LM that is measured, too.")
    ] = None,
    requests: Annotated[
        Path | None, typer.Option(help="RankLLM request file (JSONL) with queries and passages; default: random words.")
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="Tokenizer of the random models; default: one that is made for the texts.")
    ] = None,
    section: Annotated[
        list[str] | None, typer.Option(help=f"Section to run, of {', '.join(s.name for s in SECTIONS)}. Repeatable.")
    ] = None,
) -> None:
    """Measure, and write a table of what was found; the exit code is 1 if something failed."""
    start_s = time.monotonic()
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    quiet_libraries()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that processes of sections end, too
    known = [one.name for one in SECTIONS]
    if unknown := [name for name in section or () if name not in known]:
        raise ConfigError(f"--section {' '.join(unknown)}: choose from {', '.join(known)}")
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="prove-on-gpu-") as folder:
        (device,) = in_process("the device", lambda: [measure_device()], start_s + _DEVICE_S)
        if not isinstance(device, Device):
            raise ConfigError(f"the device cannot be measured: {device.measured}")
        proof = Proof(device, Path(folder), out.absolute(), weights, requests, tokenizer)
        chosen = [one for one in SECTIONS if not section or one.name in section]
        has_failed = _prove(proof, chosen, start_s)
    print(f"in {time.monotonic() - start_s:.0f} s: {out / 'gpu.md'}", flush=True)
    if has_failed:
        raise typer.Exit(1)


def _prove(proof: Proof, sections: Sequence[Section], start_s: float) -> bool:
    """Writes the table. Returns True if something failed."""
    has_failed, page = False, f"{_facts(proof.device)}\n\n{_HEAD}"
    for section in sections:
        for row in rows_of(section, proof, start_s):
            line = f"| {row.what} | {row.measured} | {row.floor} | {row.ratio} |".replace("\n", " ")
            print(f"{time.monotonic() - start_s:4.0f} s {line}", flush=True)
            page, has_failed = f"{page}{line}\n", has_failed or row.has_failed
            (proof.out / "gpu.md").write_text(page, encoding="utf-8")
    return has_failed


def _facts(device: Device) -> str:
    found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    commit = found.stdout.strip() or os.environ.get("COMMIT") or "unknown"
    return (
        f"{device.name}; torch {torch.__version__}, transformers {transformers.__version__}; commit {commit}; "
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC. A large matrix product does {device.flop_per_s / 1e12:,.3g} TFLOP/s, "
        f"a copy in memory {device.bytes_per_s / 1e9:,.4g} GB/s. Floor: 2 FLOP for each weight of the layers and "
        "token, in a training 6, at the rate of the product. Each model is warmed up by a call before it is timed."
    )


if __name__ == "__main__":
    run(app)
