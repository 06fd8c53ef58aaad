"""Proof of a GPU in four minutes: measures what matters of the service and the trainings, and writes a table.

    scripts/prove_on_gpu.sh OUT [WEIGHTS] [--requests FILE] [--tokenizer DIR] [--section NAME]...

Writes OUT/gpu.md after each row, so that what was measured stays if the time runs out, and the logs of the service and
of train-first next to it. Weights are random, but for a folder that is given. Without a GPU all models are
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
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from rerank.commands.run import run
from rerank.errors import ConfigError
from rerank.util.files import atomic_file
from scripts.bench.proof.sections import Device, Section, Worker

#: How long it may take to import torch and to measure the rates of the device, in seconds.
_DEVICE_S = 60
_HEAD = "| what | measured | floor | ratio |\n| --- | ---: | ---: | ---: |\n"
_PACKAGE = "scripts.bench.proof"
#: Functions of the other process, which imports torch.
_MEASURE_DEVICE, _PROVE = f"{_PACKAGE}.setting:measure_device", f"{_PACKAGE}.setting:prove"
#: In the order of their runs, by value.
SECTIONS = (
    Section("service", f"{_PACKAGE}.service:prove_service", 130),
    Section("training", f"{_PACKAGE}.training:prove_training", 170),
    Section("passes", f"{_PACKAGE}.passes:prove_passes", 205),
    Section("rankers", f"{_PACKAGE}.agreement:prove_agreement", 225),
    Section("precision", f"{_PACKAGE}.agreement:prove_precision", 230),
    Section("faiss", f"{_PACKAGE}.vectors:prove_vectors", 234),
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
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that processes of sections end, too
    known = [one.name for one in SECTIONS]
    if unknown := [name for name in section or () if name not in known]:
        raise ConfigError(f"--section {' '.join(unknown)}: choose from {', '.join(known)}")
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="prove-on-gpu-") as folder:
        given = {"weights": weights, "requests": requests, "tokenizer_folder": tokenizer}
        paths = {"folder": Path(folder), "out": out.absolute()} | {name: path for name, path in given.items() if path}
        has_failed = _prove(paths, _chosen(section or known), start_s)
    print(f"in {time.monotonic() - start_s:.0f} s: {out / 'gpu.md'}", flush=True)
    if has_failed:
        raise typer.Exit(1)


def _chosen(names: Collection[str]) -> list[Section]:
    """The sections of these names. The last one has the time of those that follow it and do not run."""
    *others, last = (section for section in SECTIONS if section.name in names)
    return [*others, replace(last, until_s=SECTIONS[-1].until_s)]


def _prove(paths: Mapping[str, Path], sections: Sequence[Section], start_s: float) -> bool:
    """Writes the table. Returns True if something failed."""
    has_failed = False
    with Worker() as worker:
        (device,) = worker.run("the device", _MEASURE_DEVICE, (), start_s + _DEVICE_S)
        if not isinstance(device, Device):
            raise ConfigError(f"the device cannot be measured: {device.measured}")
        page = f"{_facts(device)}\n\n{_HEAD}"
        for section in sections:
            section_failed = False
            arguments = (section.prove, device, paths)
            for row in worker.run(section.name, _PROVE, arguments, start_s + section.until_s):
                print(f"{time.monotonic() - start_s:4.0f} s {row}", flush=True)
                page, section_failed = f"{page}{row}\n", section_failed or row.has_failed
                with atomic_file(paths["out"] / "gpu.md") as path:
                    path.write_text(page, encoding="utf-8")
            if section_failed:
                worker.replace()
            has_failed |= section_failed
    return has_failed


def _facts(device: Device) -> str:
    found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    commit = found.stdout.strip() or os.environ.get("COMMIT") or "unknown"
    return (
        f"{device.name}; {device.versions}; commit {commit}; {datetime.now(UTC):%Y-%m-%d %H:%M} UTC. A large matrix "
        f"product does {device.flop_per_s / 1e12:,.3g} TFLOP/s, a copy in memory {device.bytes_per_s / 1e9:,.4g} GB/s. "
        "Floor: 2 FLOP for each weight of the layers and token, in a training 6, at the rate of the product. Each "
        "model is warmed up by a call before it is timed."
    )


if __name__ == "__main__":
    run(app)
