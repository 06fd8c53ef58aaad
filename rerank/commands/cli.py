"""The command `rerank` and its subcommands."""

from __future__ import annotations

from typing import Annotated

import typer

from rerank.commands import keys
from rerank.commands.flags import flags
from rerank.commands.health import health
from rerank.commands.inspect_results import inspect
from rerank.commands.loadtest import LoadTestSettings, loadtest
from rerank.commands.options import flag
from rerank.commands.query import RankSettings, SearchSettings, models, rank, search
from rerank.commands.run import run
from rerank.commands.service import demo, expand, index, serve, verify

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(serve)
app.command()(index)
app.command()(expand)
app.command()(verify)
app.command()(flags(SearchSettings)(search))
app.command()(flags(RankSettings)(rank))
app.command()(models)
app.command()(health)
app.command()(flags(LoadTestSettings)(loadtest))
app.add_typer(keys.app, name="keys")
app.command()(demo)
app.command()(inspect)


def _print_version(requested: bool) -> None:
    if requested:
        from rerank import __version__

        print(f"rerank {__version__}")
        raise typer.Exit


@app.callback()
def common(version: Annotated[bool, flag("--version", "Print the version.", callback=_print_version)] = False) -> None:
    """Listwise reranking with language models."""


def main() -> None:
    """The entry point of the command."""
    run(app)


if __name__ == "__main__":
    main()
