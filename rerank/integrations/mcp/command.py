"""`rerank mcp`: the tools `search` and `rerank` for an MCP client, such as an assistant or an editor."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from rerank.commands import options
from rerank.commands.app import CommandApp
from rerank.commands.flags import flags
from rerank.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class McpSettings:
    """Settings of `rerank mcp`."""

    index: Annotated[Path | None, typer.Option(help="Index folder from `rerank index`; without it, no search.")] = None
    config: Annotated[
        Path | None, typer.Option(help="YAML file with the settings of a service; its ports and keys are not used.")
    ] = None
    target: Annotated[
        str | None,
        typer.Option(
            help="HOST:PORT of a running service that answers, in place of models in this process. RERANK_API_KEY is "
            "its key."
        ),
    ] = None
    tls_ca: options.TLSCA = None


def mcp(settings: McpSettings) -> None:
    """Offer search and rerank as tools to an MCP client, over stdio.

    With the extra `mcp`, `rerank serve --http` offers them at /mcp, too.
    """
    import asyncio
    import signal

    from rerank.access.credentials import Credentials
    from rerank.config import load_config
    from rerank.integrations.mcp.stdio import serve_models, serve_target
    from rerank.service.startup import check_before_loading
    from rerank.telemetry.logs import set_up_logging

    if settings.target and (settings.index or settings.config):
        raise ConfigError("--target is a service with models and an index of its own; leave out --index and --config")
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the thread that waits for standard input would hold up the end
    given = load_config(settings.config, index=settings.index)
    set_up_logging(given.telemetry)
    if settings.target:
        asyncio.run(serve_target(settings.target, Credentials.from_environment(settings.tls_ca)))
        return
    no_ports = {"listen": "127.0.0.1:0", "http": None, "keys": None, "tls": None}
    telemetry = given.telemetry.model_copy(update={"metrics": None, "traces": False})
    config = given.model_copy(update=no_ports | {"telemetry": telemetry})
    check_before_loading(config)
    asyncio.run(serve_models(config))


def add_to(app: CommandApp) -> None:
    """Adds the command to `rerank`."""
    app.command(
        example="""
rerank mcp --index indexes/pydoc                      # loads the models itself
rerank mcp --target 127.0.0.1:50051                   # asks a running service; RERANK_API_KEY is its key
"""
    )(flags(McpSettings)(mcp))
