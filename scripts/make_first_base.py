"""Writes the causal language model that the small FIRST starts from: an encoder's weights with causal attention.

python scripts/make_first_base.py --out checkpoints/first-base [--encoder NAME] [--positions 1536]
"""

from pathlib import Path
from typing import Annotated

import torch
import typer
from transformers import BertConfig, BertLMHeadModel

from rerank.errors import CheckpointError
from rerank.files import atomic_folder
from rerank.models.encoder import DEFAULT_ENCODER, Encoder


def main(
    out: Annotated[Path, typer.Option(help="Folder to create.")],
    encoder: Annotated[
        str, typer.Option(help="Encoder with BERT's architecture: a folder or a name on the hub.")
    ] = DEFAULT_ENCODER,
    positions: Annotated[
        int, typer.Option(min=512, help="Number of positions of the model; those of the encoder are repeated.")
    ] = 1536,
) -> None:
    """Write a decoder with BERT's architecture and an encoder's weights."""
    source = Encoder(encoder)
    model = decoder_of(source, positions)
    tokenizer = source.copy_tokenizer()
    tokenizer.model_max_length = positions
    with atomic_folder(out) as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    print(f"{out}: {model.num_parameters():,} parameters, {positions} positions, from {encoder}")


def decoder_of(encoder: Encoder, positions: int) -> BertLMHeadModel:
    """The encoder as a causal LM, without dropout, with an identity head transform and tied output embeddings.

    Raises:
        CheckpointError: the encoder does not have BERT's architecture.
    """
    transformer = encoder.transformer
    settings = transformer.config.to_dict() | {
        "is_decoder": True,
        "max_position_embeddings": positions,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "architectures": ["BertLMHeadModel"],
    }
    model = BertLMHeadModel(BertConfig.from_dict(settings))
    weights = {f"bert.{name}": tensor for name, tensor in transformer.state_dict().items() if "pooler" not in name}
    positions_name = "bert.embeddings.position_embeddings.weight"
    known = weights[positions_name]
    later = known[len(known) // 2 :]  # not the first half, which encodes the beginning of a text
    repeats = -(-(positions - len(known)) // len(later))
    weights[positions_name] = torch.cat([known, *[later] * repeats])[:positions]
    missing, unexpected = model.load_state_dict(weights, strict=False)
    if unexpected or not all(name.startswith("cls.") for name in missing):
        raise CheckpointError(
            f"the encoder does not have BERT's architecture ({unexpected or missing}); use one that does"
        )
    with torch.no_grad():
        model.cls.predictions.transform.dense.weight.copy_(torch.eye(settings["hidden_size"]))
        model.cls.predictions.transform.dense.bias.zero_()
    model.tie_weights()
    return model


if __name__ == "__main__":
    typer.run(main)
