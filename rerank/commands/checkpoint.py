"""`rerank checkpoint`: writes checkpoints that a training starts from, and readies trained ones for distribution."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rerank.commands import options
from rerank.commands.app import CommandApp

app = CommandApp(no_args_is_help=True, help="Checkpoints before and after a training.")

Out = Annotated[Path, typer.Option(help="Folder to create.")]


@app.command(example="rerank checkpoint zero-init --out checkpoints/pe-rank-zero")
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


@app.command(example="rerank checkpoint pack runs/pe-rank/final --out packed/pe-rank")
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
    from rerank.models.checkpoint_files import pack as write_packed
    from rerank.util.files import atomic_folder

    if (start is None) != (share == 1.0):
        raise typer.BadParameter("give --start and a --share below 1 together, or neither")
    with atomic_folder(out) as folder:
        write_packed(checkpoint, folder, start, share)
        size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{out}: {size / 2**20:.1f} MiB")


@app.command(example="rerank checkpoint golden packed/pe-rank")
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
