"""The command `rerank` and its subcommands; the commands of keys and checkpoints are here."""

from __future__ import annotations

import sys
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated

import typer

from rerank.commands import options
from rerank.commands.app import CommandApp, flags
from rerank.commands.query import SearchSettings, health, models, search
from rerank.commands.rank import RankSettings, rank
from rerank.commands.run import run
from rerank.commands.service import ServeCommand, ServeSettings, demo, index, serve, verify

checkpoints = CommandApp(no_args_is_help=True, help="Checkpoints before and after a training.")
Out = Annotated[Path, typer.Option(help="Folder to create.")]
api_keys = CommandApp(no_args_is_help=True)


@checkpoints.command(example="rerank checkpoint zero-init --out checkpoints/pe-rank-zero")
def zero_init(
    out: Out,
    encoder: options.Encoder = None,
    seed: Annotated[int, typer.Option(help="Seed of the initial weights.")] = 0,
) -> None:
    """Write the zero-initialised PE-Rank checkpoint that a training starts from.

    It orders by the encoder's cosine.
    """
    from rerank.models.encoder import DEFAULT_ENCODER, Encoder
    from rerank.models.projector import write_zero_init_checkpoint

    name = encoder or DEFAULT_ENCODER
    write_zero_init_checkpoint(Encoder(name), out, seed=seed)
    print(f"{out}: a model over {name}, seed {seed}")


@checkpoints.command(example="rerank checkpoint pack runs/pe-rank/final --out packed/pe-rank")
def pack(
    checkpoint: Annotated[Path, typer.Argument(help="Folder `final` of a training run.")],
    out: Out,
    start: Annotated[
        Path | None, typer.Option(help="Checkpoint that the training started from, for the interpolation.")
    ] = None,
    share: Annotated[
        float, typer.Option(min=0, max=1, help="Share of the trained weights in the interpolation with --start, 0-1.")
    ] = 1.0,
) -> None:
    """Pack a trained checkpoint for distribution: weights in float16."""
    from rerank.checkpoints.weights import pack as write_packed
    from rerank.util.files import atomic_folder

    if (start is None) != (share == 1.0):
        raise typer.BadParameter("give --start and a --share below 1 together, or neither")
    with atomic_folder(out) as folder:
        write_packed(checkpoint, folder, start, share)
        size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{out}: {size / 2**20:.1f} MiB")


@checkpoints.command(example="rerank checkpoint golden packed/pe-rank")
def golden(
    checkpoint: Annotated[Path, typer.Argument(help="Folder of a checkpoint with a manifest.")],
    encoder: options.Encoder = None,
) -> None:
    """Write a checkpoint's reference scores, for the self-test of the loaded model.

    They are computed on the CPU in float32.
    """
    from rerank.config.named import config_of_model
    from rerank.models.encoder import DEFAULT_ENCODER, Encoder
    from rerank.rankers.self_test import GOLDEN, write_golden
    from rerank.reranking.load_models import load_ranker, scoring_settings

    model = config_of_model(str(checkpoint.absolute())).models[0]
    model = model.model_copy(update={"precision": "float32"})
    ranker = load_ranker(model, Encoder(encoder or DEFAULT_ENCODER, "cpu"), "cpu")
    write_golden(ranker, scoring_settings(model), checkpoint)
    print(checkpoint / GOLDEN)


@api_keys.callback()
def keys() -> None:
    """API keys of a service."""


@api_keys.command(example="rerank keys add search-backend --keys keys.yaml --max-calls 8")
def add(
    name: Annotated[str, typer.Argument(help="Name of the key's holder, for the log and the errors of the service.")],
    keys: Annotated[Path, typer.Option(help="The file of the keys, which is created if need be.")],
    max_calls: Annotated[int | None, typer.Option(min=1, help="Largest number of calls in flight.")] = None,
) -> None:
    """Make a key, print it once, and append its hash to the file, which a running service reads within a second.

    Its entry may also have `max_queue_tokens`. To revoke a key, delete its entry from the file. To revoke
    all, leave [] in it: a file without a list is refused.
    """
    from rerank.access.keys import CallerLimits, add_key

    print(add_key(keys, name, CallerLimits(max_calls=max_calls)), flush=True)
    print(f"Keep this key of {name}; {keys} has only its hash.", file=sys.stderr)


app = CommandApp(add_completion=True, no_args_is_help=True)
app.command(
    example="""
rerank serve                                          # the bundled models, at 127.0.0.1:50051
rerank serve --index indexes/pydoc --http             # with search, and HTTP at 127.0.0.1:8080
rerank serve --http 127.0.0.1:8081                    # HTTP at another address
rerank serve --model castorini/first_mistral          # with a model of the Hugging Face hub
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
app.add_typer(checkpoints, name="checkpoint")
app.add_typer(api_keys, name="keys")
app.command(example="rerank demo --work rerank-demo --stay")(demo)
for further in sorted(entry_points(group="rerank.commands")):
    further.load()(app)


def _print_version(requested: bool) -> None:
    if requested:
        from rerank import __version__

        print(f"rerank {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[bool, options.flag("--version", "Print the version.", callback=_print_version)] = False,
) -> None:
    """Listwise reranking with language models."""


main = partial(run, app)


if __name__ == "__main__":
    main()
