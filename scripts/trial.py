"""Trials of the service: what it does under faults, load and time. The figures are in docs/reliability.md.

python scripts/trial.py soak --seconds 3600
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer
from trials.soak import soak as run_soak

from rerank.commands.run import run

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


if __name__ == "__main__":
    run(app)
