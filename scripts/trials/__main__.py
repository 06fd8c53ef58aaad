"""Trials of the service: what it does under attack, faults, load and time, for docs/evidence/reliability.md.

python -m scripts.trials attack all
"""

from __future__ import annotations

import typer

from rerank.commands.run import run
from scripts.trials.attack import attack
from scripts.trials.fallback import fallback
from scripts.trials.fuzz import fuzz
from scripts.trials.restarts import kill
from scripts.trials.soak import soak

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
for trial in (attack, soak, kill, fallback, fuzz):
    app.command()(trial)

if __name__ == "__main__":
    run(app)
