"""`rerank ray-serve`: the service with replicas on Ray Serve. Needs the extra `ray`."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Annotated

import typer

from rerank.commands.app import CommandApp


def ray_serve(
    config: Annotated[Path, typer.Option(help="YAML file with the settings of the service, as for `rerank serve`.")],
    replicas: Annotated[
        int, typer.Option(min=1, help="Number of replicas; with --max-replicas, the smallest number.")
    ] = 1,
    max_replicas: Annotated[
        int | None, typer.Option(min=1, help="Largest number of replicas, for autoscaling by the calls in flight.")
    ] = None,
    num_gpus: Annotated[
        float, typer.Option(min=0, help="Number of GPUs of each replica; with 0.5, two replicas share a GPU.")
    ] = 0.0,
    address: Annotated[
        str | None,
        typer.Option(help="Address of a running Ray cluster, or auto; the service runs on when this command ends."),
    ] = None,
) -> None:
    """Deploy the service on Ray Serve, or replace the replicas of an earlier deployment one after the other.

    Without --address it starts Ray on this machine, and ends it on SIGTERM or Ctrl-C.
    """
    from ray import serve

    from rerank.config import load_config
    from rerank.integrations.ray_serve.application import NAME, Scale, check, connect, deploy

    settings = load_config(config)
    check(settings, scale := Scale(replicas, max_replicas, num_gpus))
    connect(address)
    deploy(settings, scale)
    typer.echo(f"listening on {settings.listen}")
    if address is not None:
        return
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    stop.wait()
    serve.delete(NAME)  # waits for the calls in flight
    serve.shutdown()


def add_to(app: CommandApp) -> None:
    """Adds the command to `rerank`."""
    app.command(
        "ray-serve",
        example="""
rerank ray-serve --config service.yaml --replicas 2
rerank ray-serve --config service.yaml --max-replicas 8 --num-gpus 1 --address auto
""",
    )(ray_serve)
