"""The command `rerank` and its subcommands."""

from __future__ import annotations

from functools import partial
from importlib.metadata import entry_points
from typing import Annotated

import typer

from rerank.commands import checkpoint, keys
from rerank.commands.app import CommandApp
from rerank.commands.flags import flags
from rerank.commands.options import flag
from rerank.commands.query import SearchSettings, health, models, search
from rerank.commands.rank import RankSettings, rank
from rerank.commands.run import run
from rerank.commands.service import ServeCommand, ServeSettings, demo, index, serve, verify

app = CommandApp(add_completion=True, no_args_is_help=True)
app.command(
    example="""
rerank serve                                          # the bundled models, at 127.0.0.1:50051
rerank serve --index indexes/pydoc --http             # with search, and HTTP at 127.0.0.1:8080
rerank serve --http 127.0.0.1:8081                    # HTTP at another address
rerank serve --model mine=runs/first/final            # with a model that train-first wrote
rerank serve --config service.yaml --check            # only check the settings
""",
    cls=ServeCommand,
)(flags(ServeSettings)(serve))
app.command(
    example="""
rerank index --collection pydoc --out indexes/pydoc   # Python's documentation
rerank index --collection my-corpus --out indexes/my-corpus   # my-corpus/corpus.jsonl: {"_id": …, "text": …} per line
"""
)(index)
app.command(example="rerank verify indexes/pydoc")(verify)
app.command(
    example="""
rerank search "parse a date string with a known format"
rerank search "parse a date" --first-stage bm25 --depth 50 --top-n 5 --model pe-rank --verbose
"""
)(flags(SearchSettings)(search))
app.command(
    example="""
rerank rank --example                                   # six passages, ranked in this process
rerank rank --query "how long does a flea live" "Deserts are dry." "A flea lives a year."
rerank rank --query "how long does a flea live" candidates.jsonl   # --target: by a running service
rerank rank --query "how long does a flea live" --top-n 3 --json - < candidates.jsonl
rerank rank --batch requests.jsonl --out ranked.jsonl   # many queries; the same again goes on after a kill
"""
)(flags(RankSettings)(rank))
app.command(example="rerank models --target 127.0.0.1:50051")(models)
app.command(example="rerank health --target 127.0.0.1:50051 --timeout-s 1")(health)
app.add_typer(checkpoint.app, name="checkpoint")
app.add_typer(keys.app, name="keys")
app.command(example="rerank demo --work rerank-demo --stay")(demo)
for further in sorted(entry_points(group="rerank.commands")):
    further.load()(app)


def _print_version(requested: bool) -> None:
    if requested:
        from rerank import __version__

        print(f"rerank {__version__}")
        raise typer.Exit


@app.callback()
def common(version: Annotated[bool, flag("--version", "Print the version.", callback=_print_version)] = False) -> None:
    """Listwise reranking with language models."""


main = partial(run, app)


if __name__ == "__main__":
    main()
