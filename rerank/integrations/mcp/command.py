"""`rerank mcp`: the tools `search` and `rerank` for an MCP client, such as an assistant or an editor."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from rerank.commands import options
from rerank.commands.app import CommandApp, flags
from rerank.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class McpSettings:
    """Settings of `rerank mcp`."""

    index: Annotated[Path | None, "Index folder from `rerank index`; without it, the tool `search` is left out."] = None
    config: Annotated[Path | None, "YAML file with the settings of a service; its ports and keys are not used."] = None
    target: Annotated[
        str | None, "HOST:PORT of a running service to use instead of starting one. RERANK_API_KEY is its key."
    ] = None
    tls_ca: options.TLSCA = None


def mcp(settings: McpSettings) -> None:
    """Offer search and rerank as tools to an MCP client, over standard input and output.

    Without --target, it starts a service in a child process, which ends when this command ends.
    """
    import asyncio
    import signal

    from rerank.access.credentials import PLAIN, Credentials
    from rerank.commands.service_process import service_process
    from rerank.config import load_config
    from rerank.integrations.mcp.tools import serve_tools
    from rerank.service.startup import check_before_loading
    from rerank.util.signals import end_at_once

    end_at_once([signal.SIGINT])  # an exit of Python would wait for the thread that reads standard input
    if settings.target:
        if settings.index or settings.config:
            raise ConfigError("the service at --target has its models and its index; leave out --index and --config")
        asyncio.run(serve_tools(settings.target, Credentials.from_environment(settings.tls_ca)))
        return
    given = load_config(settings.config, index=settings.index)
    no_ports = {"listen": "127.0.0.1:0", "http": None, "keys": None, "tls": None}
    telemetry = given.telemetry.model_copy(update={"metrics": None, "traces": False})
    config = given.model_copy(update=no_ports | {"telemetry": telemetry})
    check_before_loading(config)
    with service_process(config) as address:
        asyncio.run(serve_tools(address, PLAIN))


def add_to(app: CommandApp) -> None:
    """Adds the command to `rerank`."""
    app.command(
        example="""
rerank mcp --index indexes/pydoc                      # starts a service
rerank mcp --target 127.0.0.1:50051                   # asks a running service; RERANK_API_KEY is its key
"""
    )(flags(McpSettings)(mcp))
