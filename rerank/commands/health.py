"""`rerank health`: asks a running service whether it is ready, or alive."""

from __future__ import annotations

from typing import Annotated

import typer

from rerank.commands import options
from rerank.commands.query import DEFAULT_TARGET
from rerank.commands.run import console

_EXIT_NOT_SERVING = 1


def health(
    target: options.Target = DEFAULT_TARGET,
    model: Annotated[str, typer.Option(help="Ask for this model; empty: for the default model.")] = "",
    liveness: Annotated[
        bool, options.flag("--liveness", "Ask whether the process answers, whatever its models, also during a drain.")
    ] = False,
    tls_ca: options.TLSCA = None,
    timeout_s: options.TimeoutS = 5.0,
) -> None:
    """Ask a running service whether it is ready.

    Prints SERVING and exits with 0, or prints NOT_SERVING and exits with 1; without an answer exits with 2.
    """
    from rerank.access.credentials import Credentials
    from rerank.client.health_check import check_health

    status = check_health(target, Credentials.from_environment(tls_ca), timeout_s, model, liveness)
    console.print(status)
    if status != "SERVING":
        raise typer.Exit(_EXIT_NOT_SERVING)
