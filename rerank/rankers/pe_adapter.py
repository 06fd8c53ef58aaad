"""Reads checkpoints of the LoRA training by PE-Rank's authors: an adapter, the projector, and other trained weights.

Its folder has config.json and adapter_config.json, `adapter_model.*` in peft's form, projector.bin and
non_lora_trainables.bin (liuqi6777/pe_rank, train.py). The language model and, as a rule, the tokenizer are the base's.
"""

from __future__ import annotations

from pathlib import Path

import torch

from rerank.checkpoints.adapters import PREFIX, merged
from rerank.checkpoints.settings_files import ADAPTER_FILE
from rerank.checkpoints.weights import Weights, read_torch_file
from rerank.errors import CheckpointError
from rerank.models.loading import base_model_of, check_findable, load_weights
from rerank.models.smollm2 import locate_causal_lm

PROJECTOR_FILE = "projector.bin"
_OTHERS_FILE = "non_lora_trainables.bin"


def read_adapted_weights(folder: Path, dtype: torch.dtype) -> tuple[Weights, list[Path]]:
    """Returns the tensors as in a complete checkpoint (name → tensor), with the adapter merged, and the files read.

    Args:
        dtype: number format in which the adapter is merged.

    Raises:
        CheckpointError: a file is missing, or does not fit the base.
        ConfigError: the base is neither a folder nor on the hub.
    """
    files = [path for name in (_OTHERS_FILE, PROJECTOR_FILE) if (path := folder / name).is_file()]
    if not files:
        raise CheckpointError(
            f"{folder} has an adapter, and neither {PROJECTOR_FILE} nor {_OTHERS_FILE}, which the training writes at "
            "its end; give the folder of the finished training instead of one of its saves"
        )
    model = merged(load_weights(adapter_base(folder), dtype), folder, "CAUSAL_LM")
    weights: Weights = dict(model.state_dict())
    for path in files:  # both files have the projector
        weights |= {name.removeprefix(PREFIX): tensor for name, tensor in read_torch_file(path).items()}
    return weights, [*sorted(folder.glob("adapter_model.*")), *files]


def adapter_base(folder: Path) -> str:
    """Returns the base of an adapter: a folder, or a name on the hub.

    Raises:
        CheckpointError: the adapter names no base.
        ConfigError: the base cannot be found.
    """
    base = locate_causal_lm(base_model_of(folder))
    check_findable(base, f"base of the adapter {folder}", f"set its path in {folder / ADAPTER_FILE}")
    return base
