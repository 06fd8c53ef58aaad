"""Writes the zero-initialised PE-Rank checkpoint that training starts from; its order is that of the encoder's cosine.

python scripts/make_pe_rank_checkpoint.py --out checkpoints/pe-rank-zero [--encoder NAME] [--layers 3] [--seed 0]
"""

from pathlib import Path
from typing import Annotated

import typer

from rerank.models.encoder import DEFAULT_ENCODER, Encoder
from rerank.models.zero_init import write_zero_init_checkpoint


def main(
    out: Annotated[Path, typer.Option(help="Folder to create.")],
    encoder: Annotated[
        str, typer.Option(help="Encoder: a folder, or a name on the Hugging Face hub.")
    ] = DEFAULT_ENCODER,
    layers: Annotated[int, typer.Option(min=2, max=4, help="Number of transformer layers.")] = 3,
    seed: Annotated[int, typer.Option(help="Seed of the initial weights.")] = 0,
) -> None:
    """Write the zero-initialised PE-Rank checkpoint of an encoder."""
    write_zero_init_checkpoint(Encoder(encoder), out, layers, seed)
    print(f"{out}: {layers} layers over {encoder}, seed {seed}")


if __name__ == "__main__":
    typer.run(main)
