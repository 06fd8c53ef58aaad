"""`rerank keys add`: makes an API key."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from rerank.commands.app import CommandApp

app = CommandApp(no_args_is_help=True, help="API keys of a service.")


@app.callback()
def keys() -> None:
    """API keys of a service."""


@app.command(example="rerank keys add search-backend --keys keys.yaml --max-calls 8")
def add(
    name: Annotated[str, typer.Argument(help="Name of the key's holder, for the log and the errors of the service.")],
    keys: Annotated[Path, typer.Option(help="The file of the keys, which is created if need be.")],
    max_calls: Annotated[int | None, typer.Option(min=1, help="Most calls in flight.")] = None,
) -> None:
    """Make a key, print it once, and append its hash to the file, which a running service reads within a second.

    Its entry may also have `max_queue_tokens`. To revoke a key, delete its entry from the file. To revoke
    all, leave [] in it: a file without a list is refused.
    """
    from rerank.access.key_file import CallerLimits, add_key

    print(add_key(keys, name, CallerLimits(max_calls=max_calls)), flush=True)
    print(f"Keep this key of {name}; {keys} has only its hash.", file=sys.stderr)
