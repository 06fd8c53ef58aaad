"""Projects the encoder's vectors into the language model's inputs (PE-Rank, Liu et al. 2025, section 3.1).

Also writes the checkpoint that training starts from, whose projector and layers change nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn
from transformers import AutoModel, LlamaConfig

from rerank.errors import CheckpointError
from rerank.models.encoder import Encoder
from rerank.util.files import atomic_folder


class ResidualProjector(nn.Module):
    """(N, D) → (N, D): x + W₂ gelu(W₁ x + b₁) + b₂, a two-layer perceptron with a residual connection.

    W₂ and b₂ are initialised to 0, so that it starts as the identity and an untrained model reads the encoder's
    vectors. Encoder and language model must have the same width.
    """

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.up = nn.Linear(dimension, dimension)
        self.down = nn.Linear(dimension, dimension)
        nn.init.zeros_(self.down.weight)
        nn.init.zeros_(self.down.bias)

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        branch: torch.Tensor = self.down(nn.functional.gelu(self.up(vectors)))
        return vectors + branch


def _perceptron(encoder_width: int, model_width: int, layers: int) -> nn.Module:
    """(N, encoder) → (N, model): linear layers with GELU between them; in the paper two, W₂ gelu(W₁ x + b₁) + b₂."""
    modules: list[nn.Module] = [nn.Linear(encoder_width, model_width)]
    for _ in range(layers - 1):
        modules += [nn.GELU(), nn.Linear(model_width, model_width)]
    return nn.Sequential(*modules)


#: `mlp2x_gelu`, `mlp3x_gelu`, …: perceptrons by their number of layers.
_PERCEPTRON = re.compile(r"mlp([1-9])x_gelu")
#: Other values of projector_type → a function that makes the projector for the widths of encoder and model.
_TYPES: dict[str, Callable[[int, int], nn.Module]] = {
    "residual_mlp2x_gelu": lambda encoder_width, model_width: ResidualProjector(model_width),
    "linear": nn.Linear,
    "identity": lambda encoder_width, model_width: nn.Identity(),
}


def make_projector(projector_type: str, encoder_width: int, model_width: int) -> nn.Module:
    """Returns an untrained projector: (N, encoder_width) → (N, model_width).

    Raises:
        CheckpointError: the projector_type is unknown, or cannot map these widths.
    """
    if match := _PERCEPTRON.fullmatch(projector_type):
        return _perceptron(encoder_width, model_width, int(match[1]))
    if projector_type not in _TYPES:
        known = ", ".join([*_TYPES, "mlp2x_gelu", "mlp3x_gelu"])
        raise CheckpointError(f"unknown projector_type {projector_type!r}; known types are {known}")
    if projector_type == "identity" and encoder_width != model_width:
        raise CheckpointError(
            f"projector_type 'identity' needs an encoder as wide as the model: the encoder's vectors have width "
            f"{encoder_width} and the model reads {model_width}; use the encoder that it was trained for"
        )
    return _TYPES[projector_type](encoder_width, model_width)


def load_projector(
    projector_type: str, weights: Mapping[str, torch.Tensor], encoder_width: int, model_width: int
) -> nn.Module:
    """Returns the projector with the given weights, in float32, ready for inference.

    Args:
        projector_type: the setting of this name in the checkpoint's config.json.
        weights: name inside the projector → tensor.

    Raises:
        CheckpointError: the type is unknown, or the weights belong to another type or to other widths or are
            not finite.
    """
    projector = make_projector(projector_type, encoder_width, model_width)
    linear = [f"{name}.weight".lstrip(".") for name, part in projector.named_modules() if isinstance(part, nn.Linear)]
    if linear and linear[0] in weights and linear[-1] in weights:
        widths = weights[linear[0]].shape[1], weights[linear[-1]].shape[0]
        if widths != (encoder_width, model_width):
            raise CheckpointError(
                f"the projector maps width {widths[0]} to {widths[1]}, but the encoder's vectors have width "
                f"{encoder_width} and the model reads {model_width}; use the encoder that it was trained for"
            )
    return _loaded(projector, weights, f"its projector_type {projector_type!r}")


def load_relu_projector(weights: Mapping[str, torch.Tensor]) -> nn.Module:
    """Returns the projector W₂ relu(W₁ x): (N, D) → (N, E), in float32, ready for inference.

    Args:
        weights: `projector.0.weight`, (inner, D), and `projector.2.weight`, (E, inner).

    Raises:
        CheckpointError: a weight is missing or unknown, the sizes do not fit, or a number is not finite.
    """
    named = {name.removeprefix("projector."): tensor for name, tensor in weights.items()}
    if missing := {"0.weight", "2.weight"} - named.keys():
        raise CheckpointError(f"the projector lacks {' and '.join(sorted(missing))}; download the checkpoint again")
    (inner, width), (outer, _) = named["0.weight"].shape, named["2.weight"].shape
    layers = nn.Linear(width, inner, bias=False), nn.ReLU(), nn.Linear(inner, outer, bias=False)
    return _loaded(nn.Sequential(*layers), named, "two layers without biases")


def _loaded(projector: nn.Module, weights: Mapping[str, torch.Tensor], kind: str) -> nn.Module:
    try:
        projector.load_state_dict(dict(weights), strict=True)
    except RuntimeError as error:
        raise CheckpointError(f"the projector does not fit {kind}: {' '.join(str(error).split())}") from error
    if not all(parameter.isfinite().all() for parameter in projector.parameters()):
        raise CheckpointError("the projector holds numbers that are not finite; copy the checkpoint again")
    return projector.eval().requires_grad_(False)


def write_zero_init_checkpoint(encoder: Encoder, out: Path, seed: int = 0) -> None:
    """Writes the PE-Rank checkpoint that training starts from: it ranks by the encoder's cosine.

    It is a Llama of the encoder's width, without token embeddings, which are the encoder's. The last matrix of every
    residual branch (`o_proj`, `down_proj`, and the projector's) is zero, so that each position leaves the model as it
    entered, up to the final norm. The last position is the query's vector, whose inner products with the passages'
    vectors give the same order as their cosines.

    Args:
        encoder: the encoder that the checkpoint is for.
        out: folder to create.
        seed: seed of the random weights.

    Raises:
        ConfigError: `out` exists already.
    """
    config = _config(encoder)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        transformer = AutoModel.from_config(config, dtype=torch.float32)
        projector = ResidualProjector(encoder.id.dimension)
    for layer in transformer.layers:
        torch.nn.init.zeros_(layer.self_attn.o_proj.weight)
        torch.nn.init.zeros_(layer.mlp.down_proj.weight)
    weights = {
        f"model.{name}": tensor for name, tensor in transformer.state_dict().items() if "embed_tokens" not in name
    }
    weights |= {f"projector.{name}": tensor for name, tensor in projector.state_dict().items()}
    with atomic_folder(out) as folder:
        config.save_pretrained(folder)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def _config(encoder: Encoder) -> LlamaConfig:
    vocabulary, hidden = encoder.token_embeddings.shape
    settings: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": 8 * hidden // 3,
        "num_hidden_layers": 3,
        "num_attention_heads": max(1, hidden // 64),
        "max_position_embeddings": 1024,
        "tie_word_embeddings": True,
        "encoder_name": encoder.id.name,
        "encoder_sha256": encoder.id.vectors_sha256,
        "projector_type": "residual_mlp2x_gelu",
        "template": "pe_rank",
    }
    return LlamaConfig(**settings)
