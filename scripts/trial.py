"""Trials of the service: what it does under faults, load and time. The figures are in docs/reliability.md.

python scripts/trial.py soak --seconds 3600
"""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Annotated

import typer
from trials import cancel as cancels
from trials import full_disk as full_disks
from trials import fuzz as fuzzing
from trials import isolation as isolations
from trials import overload as overloads
from trials import restarts
from trials.soak import soak as run_soak

from rerank.commands.run import run
from rerank.errors import ConfigError

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

Work = Annotated[Path, typer.Option(help="Folder for the index of the trials and for what a soak resumes from.")]
Seed = Annotated[int, typer.Option(help="Seed of texts, intervals and faults.")]
_WORK = Path("build/trials")


@app.callback()
def common() -> None:
    """Trials of the service under faults, load and time."""


@app.command()
def soak(
    seconds: Annotated[float, typer.Option(help="Length of this run.")] = 3600.0,
    rate: Annotated[float, typer.Option(help="Requests per second.")] = 4.0,
    work: Work = _WORK,
    seed: Seed = 0,
) -> None:
    """Mixed traffic with clients that vanish; a further run in the same folder continues it."""
    print(asyncio.run(run_soak(work, seconds, rate, seed)).report())


@app.command()
def kill(
    rounds: Annotated[int, typer.Option(help="Starts of the service for each signal.")] = 100,
    signals: Annotated[str, typer.Option(help="Signals, separated by commas.")] = "SIGTERM,SIGKILL",
    seed: Seed = 0,
) -> None:
    """Ends the service under load with SIGTERM and with SIGKILL, and starts it again at the same address."""
    print(restarts.HEADER)
    for name in signals.split(","):
        print(asyncio.run(restarts.restarts(signal.Signals[name], rounds, seed)).row(name), flush=True)


@app.command()
def cancel(
    requests: Annotated[int, typer.Option(help="Requests to cancel.")] = 500,
    model: Annotated[str, typer.Option(help="Name of the model.")] = "pe-rank",
    passages: Annotated[int, typer.Option(help="Passages per request.")] = 40,
    seed: Seed = 0,
) -> None:
    """Cancels requests at random moments and counts the batches of model work that go on."""
    print(cancels.HEADER)
    print(asyncio.run(cancels.cancel(model, requests, passages, seed)).row(model))


@app.command()
def overload(
    model: Annotated[str, typer.Option(help="Name of the model.")] = "pe-rank",
    passages: Annotated[int, typer.Option(help="Passages per request, of 300 characters.")] = 20,
    seconds: Annotated[float, typer.Option(help="Length of each load.")] = 20.0,
    seed: Seed = 0,
) -> None:
    """Open-loop load at multiples of the capacity, with deadlines of 2 s."""

    async def show() -> None:
        async for line in overloads.overload(model, passages, seconds, seed):
            print(line, flush=True)

    asyncio.run(show())


@app.command()
def isolation(
    models: Annotated[str, typer.Option(help="Models of the short requests, separated by commas.")] = (
        "identity,pe-rank,first"
    ),
    worst: Annotated[str, typer.Option(help="all, or the number of a worst request, from 1.")] = "all",
    requests: Annotated[int, typer.Option(help="Short requests to each model, alone and beside each.")] = 40,
    seed: Seed = 0,
) -> None:
    """Short requests beside one request of the worst allowed size, and without it."""
    names = list(isolations.WORST)
    if worst != "all" and worst not in map(str, range(1, len(names) + 1)):
        raise ConfigError(f"--worst {worst}: choose all, or a number from 1 to {len(names)}")
    chosen = names if worst == "all" else [names[int(worst) - 1]]

    async def show() -> None:
        async for line in isolations.isolation(models.split(","), chosen, requests, seed):
            print(line, flush=True)

    print(isolations.HEADER)
    asyncio.run(show())


@app.command()
def disk(
    command: Annotated[list[str], typer.Argument(help="A command whose output is below DISK, such as DISK/index.")],
    result: Annotated[
        list[str], typer.Option(help="Path on the disk that the command writes, such as index. Repeatable.")
    ],
    sizes: Annotated[int, typer.Option(min=1, help="Sizes of the disk, all below what the command needs.")] = 8,
    work: Work = _WORK,
) -> None:
    """Runs a command on a disk that becomes full, again with space, and on a read-only disk.

    python scripts/trial.py disk --result index -- rerank index --collection pydoc --out DISK/index
    """
    full_disks.enter_namespace()
    print(full_disks.HEADER)
    for trial in full_disks.full_disk(command, result, sizes, (work / "disk").absolute()):
        print(trial.row(), flush=True)


@app.command()
def fuzz(
    requests: Annotated[int, typer.Option(help="Mutated requests.")] = 100_000,
    garbage: Annotated[int, typer.Option(help="Garbage payloads and connections.")] = 5000,
    work: Work = _WORK,
    seed: Seed = 0,
) -> None:
    """Mutated requests over both RPCs, and garbage in place of messages and of frames."""
    for line in asyncio.run(fuzzing.fuzz(work, requests, garbage, seed)).lines():
        print(line)


if __name__ == "__main__":
    run(app)
