"""bge-reranker-v2-minicpm-layerwise: a causal transformer with a head for a score after each of its last layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModel

from rerank.checkpoints.settings_files import read_settings
from rerank.checkpoints.weights import read_weights
from rerank.config import Precision
from rerank.errors import CheckpointError
from rerank.models.last_token import IdentifierHead, LastTokenReader
from rerank.models.loading import CausalLM, load_causal_lm
from rerank.models.native_folders import native_folder
from rerank.models.precision import compute_in, uses_autocast


def load_layer(
    folder: Path, layer: int, device: torch.device, precision: Precision
) -> tuple[CausalLM, Callable[[Sequence[torch.Tensor]], torch.Tensor]]:
    """Loads the first layers of a model and the head after them.

    Args:
        folder: folder of the checkpoint.
        layer: number of layers that are loaded.
        device: the device of the model and the head.
        precision: see `rerank.config.Precision`.

    Returns:
        The model, and a function from B sequences of token ids to (B, 1) scores.

    Raises:
        CheckpointError: the folder has other heads than its config.json states, or none after this layer.
    """
    with native_folder(folder) as readable:
        lm = load_causal_lm(readable, device, precision, AutoModel, may_have=r"lm_head\.")
        lm.hashing.result()  # waits for the hash, because the files are linked only inside this block
    start, layers = read_settings(folder / "config.json").get("start_layer", 0), lm.model.config.num_hidden_layers
    heads = read_weights(folder, "lm_head.")
    names = {number: f"lm_head.{number - start}.linear_head.weight" for number in range(start, layers + 1)}
    if {*heads} != {*names.values()} or layer not in names:
        raise CheckpointError(
            f"{folder} has {len(heads)} heads ({', '.join(sorted(heads)[:2])}), and needs one for each of the layers "
            f"{start} to {layers}, with {layer} among them; download it again"
        )
    transformer: Any = lm.model
    transformer.layers = transformer.layers[:layer]
    linear = nn.Linear(transformer.config.hidden_size, 1, bias=False)
    linear.load_state_dict({"weight": heads[names[layer]]})
    compute_in(transformer, lm.precision)
    head = IdentifierHead(linear, [0]).to(device)
    reader = LastTokenReader(transformer, uses_autocast(transformer, lm.precision))
    return lm, lambda sequences: head(reader.read(sequences))
