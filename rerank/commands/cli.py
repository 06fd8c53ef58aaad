"""The command `rerank`: serve, index, search, rank and demo."""

from __future__ import annotations

import typer

from rerank.commands.flags import flags
from rerank.commands.query import RankSettings, SearchSettings, rank, search
from rerank.commands.run import run
from rerank.commands.service import demo, index, serve

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Listwise reranking with language models.",
)
app.command()(serve)
app.command()(index)
app.command()(flags(SearchSettings)(search))
app.command()(flags(RankSettings)(rank))
app.command()(demo)


def main() -> None:
    """The entry point of the command."""
    run(app)


if __name__ == "__main__":
    main()
