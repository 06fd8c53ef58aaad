"""`rerank inspect`: serves a page about the results of an evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rerank.commands import options
from rerank.commands.app import CommandApp
from rerank.commands.run import console


def inspect(
    results: Annotated[Path, typer.Argument(help="The --out folder of eval-trec-dl or eval-beir, of one dataset.")],
    listen: Annotated[str, typer.Option(help="HOST:PORT of the page.")] = "127.0.0.1:8081",
    insecure: Annotated[
        bool, options.flag("--insecure", "Listen on other addresses than the loopback, and answer to every host name.")
    ] = False,
) -> None:
    """Show the results of an evaluation in a browser.

    The page has the gain and the loss of each query, and its rankings.
    """
    from rerank.access.addresses import check_loopback
    from rerank.errors import ConfigError
    from rerank.integrations.inspector.evaluation import read_evaluation

    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigError(f"--listen {listen!r} is not HOST:PORT, such as 127.0.0.1:8081")
    if not insecure:
        check_loopback("--listen", listen, "read the evaluation")
    evaluation = read_evaluation(results)
    import uvicorn

    from rerank.integrations.inspector.evaluation_app import evaluation_app

    console.print(f"{evaluation.title}: http://{listen}   (Ctrl-C ends)")
    app = evaluation_app(evaluation, listen, insecure)
    uvicorn.run(app, host=host.strip("[]"), port=int(port), log_level="warning")


def add_to(app: CommandApp) -> None:
    """Adds the command to `rerank`."""
    app.command(example="rerank inspect results/pe-rank")(inspect)
