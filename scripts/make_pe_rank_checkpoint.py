"""Writes the PE-Rank checkpoint that training starts from: initialised to zero, its order is the encoder's cosine.

python scripts/make_pe_rank_checkpoint.py --out checkpoints/pe-rank-zero [--encoder NAME] [--layers 3] [--seed 0]
"""

from pathlib import Path
from typing import Annotated

import typer

from rerank.models.encoder import DEFAULT_ENCODER, Encoder
from rerank.models.zero_init import write_zero_init_checkpoint


def main(
    out: Annotated[Path, typer.Option(help="The folder to make.")],
    encoder: str = DEFAULT_ENCODER,
    layers: Annotated[int, typer.Option(min=2, max=4)] = 3,
    seed: int = 0,
) -> None:
    """Write the zero-init PE-Rank checkpoint of an encoder."""
    write_zero_init_checkpoint(Encoder(encoder), out, layers, seed)
    print(f"{out}: {layers} layers over {encoder}, seed {seed}")


if __name__ == "__main__":
    typer.run(main)
