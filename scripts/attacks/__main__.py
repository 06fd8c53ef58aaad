"""Attacks on a running service: the latency of other requests, health checks, memory and log during each.

    python -m scripts.attacks [NAME …] [--seconds 10]

Each attack has a fresh `rerank serve`, and runs in another process. Meanwhile probes are sent at a fixed rate, whether
or not earlier ones were answered: short requests to `identity` and to `first`, and health checks. An honest caller
sends ten passages to `pe-rank` again and again. The attack `nothing` shows what they see of an idle service.
docs/evidence/reliability.md has the figures.
"""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from rerank.commands.run import run
from rerank.errors import ConfigError
from scripts.attacks.measure import ATTACKS, measure
from scripts.attacks.probes import HEADER

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    names: Annotated[list[str] | None, typer.Argument(help="Attacks to run; none: all of them.")] = None,
    seconds: Annotated[float, typer.Option(help="How long to measure at least, from the start of the attack.")] = 15.0,
) -> None:
    """Attack the service, and print a row for each attack."""
    if unknown := set(names or ()) - ATTACKS.keys():
        raise ConfigError(f"no attack {', '.join(sorted(unknown))}: choose from {', '.join(ATTACKS)}")
    print(HEADER)
    for name in names or ATTACKS:
        print(asyncio.run(measure(name, seconds)).row(name), flush=True)


if __name__ == "__main__":
    run(app)
