"""A network that corrects the scores of a fusion. `train-fusion` trains it on lists that a user has judged.

Each passage enters as PE-Rank's do, by its vector, and with its signals beside those of the other passages of the list.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import numpy.typing as npt
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors.torch import save_file
from torch import Tensor, nn

from rerank.checkpoints.manifest import model_id
from rerank.errors import CheckpointError
from rerank.models.checkpoint_files import read_weights, weight_files
from rerank.types import Matrix, Vector
from rerank.util.files import sha256_of_files
from rerank.util.json_files import read_json

#: Number of signals of a passage, see `rerank.rankers.fused_scores.signals_beside_others`.
SIGNALS = 5
_CONFIG = "config.json"


class CorrectionConfig(BaseModel):
    """config.json of a checkpoint: the encoders whose signals the network was trained on, and its sizes.

    Attributes:
        dimension: of the encoder's vectors.
        width: of the hidden layer.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    encoder_name: str
    encoder_sha256: str
    sparse_encoder_sha256: str
    dimension: Annotated[int, Field(ge=1, le=65_536)]
    width: Annotated[int, Field(ge=1, le=4096)] = 128


class FusionCorrection(nn.Module):
    """One number per passage, which is added to its fused score.

    A perceptron with one hidden layer reads the passage's vector v, the product q ⊙ v with the query's vector, and the
    passage's signals. The output layer starts at zero, so that an untrained network keeps the order of the fusion.
    """

    def __init__(self, settings: CorrectionConfig, dropout: float = 0.2) -> None:
        super().__init__()
        self.settings = settings  # not `config`, which Trainer would change
        self.signals = nn.Linear(SIGNALS, settings.width)
        self.vectors = nn.Linear(2 * settings.dimension, settings.width)
        self.dropout = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(settings.width)
        self.out = nn.Linear(settings.width, 1)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, signals: Tensor, vectors: Tensor, query: Tensor) -> Tensor:
        """(…, n, 5) signals, (…, n, D) passages and (…, D) queries → (…, n)."""
        scale = self.settings.dimension**0.5  # the coordinates of a unit vector times it have a mean square of 1
        read = torch.cat([vectors * query[..., None, :] * scale, vectors * (scale / 2)], dim=-1)
        hidden = self.signals(signals) + self.dropout(self.vectors(self.dropout(read)))
        corrections: Tensor = self.out(self.norm(nn.functional.gelu(hidden)))
        return corrections[..., 0]

    def save_pretrained(self, folder: Path) -> None:
        """Writes config.json and the weights."""
        (folder / _CONFIG).write_text(self.settings.model_dump_json(indent=2) + "\n", encoding="utf-8")
        save_file(self.state_dict(), folder / "model.safetensors", metadata={"format": "pt"})


@dataclass(frozen=True, slots=True)
class CorrectionId:
    """Name and SHA-256 of a checkpoint."""

    name: str
    sha256: str


class LoadedCorrection:
    """The correction of a checkpoint, for inference on the CPU.

    Args:
        folder: written by `train-fusion`.
        encoder_sha256: of weights and prompts of the encoder that the service loads.
        sparse_encoder_sha256: of the sparse encoder that it loads.

    Raises:
        CheckpointError: the folder holds no such checkpoint, or one that was trained with other encoders.
    """

    def __init__(self, folder: Path, encoder_sha256: str, sparse_encoder_sha256: str) -> None:
        config = _read_config(folder)
        for what, trained, loaded in (
            (f"encoder {config.encoder_name}", config.encoder_sha256, encoder_sha256),
            ("sparse encoder", config.sparse_encoder_sha256, sparse_encoder_sha256),
        ):
            if trained != loaded:
                raise CheckpointError(
                    f"{folder} was trained with {what} (sha256 of weights and prompts {trained}), but this service "
                    f"loads {loaded}; use that one, or train again with this one"
                )
        self.id = CorrectionId(model_id(folder), sha256_of_files(weight_files(folder)))
        self._network = FusionCorrection(config)
        try:
            self._network.load_state_dict(read_weights(folder), strict=True)
        except RuntimeError as error:
            raise CheckpointError(f"{folder}: the weights do not fit {_CONFIG}: {error}") from error
        if not all(parameter.isfinite().all() for parameter in self._network.parameters()):
            raise CheckpointError(f"{folder} holds numbers that are not finite; copy the checkpoint again")
        self._network.eval().requires_grad_(False)

    @torch.inference_mode()
    def __call__(self, signals: npt.NDArray[np.float32], vectors: Matrix, query: Vector) -> npt.NDArray[np.float32]:
        """(n, 5) signals, (n, D) passages and a (D,) query → (n,) corrections."""
        return self._network(*map(torch.from_numpy, (signals, vectors, query))).numpy()


def _read_config(folder: Path) -> CorrectionConfig:
    try:
        return CorrectionConfig.model_validate(read_json(folder / _CONFIG))
    except ValidationError as error:
        raise CheckpointError(
            f"{folder / _CONFIG} is not of a correction that train-fusion wrote: {json.loads(error.json())[0]['msg']}; "
            "give the folder `final` of such a run"
        ) from error
