"""Writes golden.json into a checkpoint: reference scores with which the self-test compares the loaded model.

python scripts/write_golden.py rerank/checkpoints/first_smollm2
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rerank.config import load_config
from rerank.manifest import served_model
from rerank.models.encoder import DEFAULT_ENCODER, Encoder
from rerank.rankers.self_test import GOLDEN, write_golden
from rerank.registry import load_ranker, scoring_settings


def main(
    checkpoint: Annotated[Path, typer.Argument(help="Folder of a checkpoint with a manifest.")],
    encoder: Annotated[str, typer.Option(help="Encoder that PE-Rank was trained for.")] = DEFAULT_ENCODER,
) -> None:
    """Write a checkpoint's reference scores, computed on the CPU in float32."""
    model = load_config(None, [served_model(f"golden={checkpoint}")]).models[0]
    write_golden(load_ranker(model, Encoder(encoder, "cpu"), "cpu"), scoring_settings(model), checkpoint)
    print(f"{checkpoint / GOLDEN}")


if __name__ == "__main__":
    typer.run(main)
