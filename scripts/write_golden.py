"""Writes golden.json into a checkpoint: reference scores with which the self-test compares the loaded model.

python scripts/write_golden.py rerank/checkpoints/first_smollm2
python scripts/write_golden.py rerank/checkpoints/first_smollm2 --bundled default
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rerank.config import BUNDLED_MODELS, ModelConfig, load_config
from rerank.errors import ConfigError
from rerank.manifest import served_model
from rerank.models.encoder import DEFAULT_ENCODER, Encoder
from rerank.rankers.self_test import GOLDEN, write_golden
from rerank.registry import load_ranker, scoring_settings


def main(
    checkpoint: Annotated[Path, typer.Argument(help="Folder of a checkpoint with a manifest.")],
    encoder: Annotated[str, typer.Option(help="Encoder that PE-Rank was trained for.")] = DEFAULT_ENCODER,
    bundled: Annotated[
        str, typer.Option(help="Write golden-NAME.json, with the settings of the bundled model of this name.")
    ] = "",
) -> None:
    """Write a checkpoint's reference scores, computed on the CPU in float32."""
    model, name = load_config(None, [served_model(f"golden={checkpoint}")]).models[0], GOLDEN
    if bundled:
        model, name = _bundled_model(bundled).model_copy(update={"path": checkpoint}), f"golden-{bundled}.json"
    write_golden(load_ranker(model, Encoder(encoder, "cpu"), "cpu"), scoring_settings(model), checkpoint, name)
    print(f"{checkpoint / name}")


def _bundled_model(name: str) -> ModelConfig:
    models = {model.name: model for model in BUNDLED_MODELS}
    if name not in models:
        raise ConfigError(f"--bundled {name!r} is none of {', '.join(models)}")
    return models[name]


if __name__ == "__main__":
    typer.run(main)
