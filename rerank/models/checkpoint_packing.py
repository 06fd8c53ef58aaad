"""Packs a trained checkpoint for distribution: weights in float16, in one file.

With a `start` and a `share` the weights are interpolated between the start and the end of the training (WiSE-FT,
Wortsman et al., CVPR 2022): less of the training is kept, and less is lost on data unlike the training's.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TypeAlias

import torch
from safetensors.torch import load_file, save_file

from rerank.checkpoints.manifest import MANIFEST_FILE, read_manifest, write_manifest
from rerank.checkpoints.settings_files import ADAPTER_FILE
from rerank.errors import CheckpointError
from rerank.models.checkpoint_files import read_weights
from rerank.util.files import sha256_of_files

#: Name → tensor.
Weights: TypeAlias = dict[str, torch.Tensor]

_ADAPTER_WEIGHTS = "adapter_model.safetensors"


def pack(checkpoint: Path, out: Path, start: Path | None = None, share: float = 1.0) -> None:
    """Writes the packed checkpoint to the empty folder `out`, with the hash of the new weights in its manifest.

    Raises:
        CheckpointError: the checkpoint has no manifest or does not match it, its weights have other names or shapes
            than `start` has, or a number exceeds the range of float16.
    """
    manifest = read_manifest(checkpoint)
    if manifest is None:
        raise CheckpointError(f"{checkpoint} holds no {MANIFEST_FILE}; give the `final` folder of a training run")
    trained = _read(checkpoint)
    if start is not None:
        trained = _interpolated(trained, _read(start), share)
        command = f"{manifest.command} && rerank checkpoint pack --start {start.name} --share {share}"
        manifest = manifest.model_copy(update={"command": command, "metrics": {}})  # of the last weights
    weights = {name: _to_float16(name, tensor) for name, tensor in trained.items()}
    written = out / (_ADAPTER_WEIGHTS if _is_adapter(checkpoint) else "model.safetensors")
    save_file(weights, written, metadata={"format": "pt"})
    written.chmod(0o644)  # with safetensors' 0600, a service of another user could not read it
    replaced = {MANIFEST_FILE, "model.safetensors.index.json"}
    if _is_adapter(checkpoint):  # it uses the tokenizer of its base
        replaced |= {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}
    for path in checkpoint.iterdir():
        if path.is_file() and path.name not in replaced and path.suffix != ".safetensors":
            shutil.copyfile(path, out / path.name)
    write_manifest(out, manifest.model_copy(update={"weights_sha256": sha256_of_files([written])}))


def _read(checkpoint: Path) -> Weights:
    return load_file(checkpoint / _ADAPTER_WEIGHTS) if _is_adapter(checkpoint) else read_weights(checkpoint)


def _is_adapter(checkpoint: Path) -> bool:
    return (checkpoint / ADAPTER_FILE).is_file()


def _interpolated(trained: Weights, start: Weights, share: float) -> Weights:
    """start + share (trained - start). Raises: CheckpointError when names or shapes differ."""
    way_out = "--start must be the --base of the training"
    if differing := sorted(trained.keys() ^ start.keys()):
        raise CheckpointError(f"{differing[0]} is in only one of the two checkpoints; {way_out}")
    for name, tensor in trained.items():
        if tensor.shape != start[name].shape:
            shapes = f"{tuple(tensor.shape)} and {tuple(start[name].shape)}"
            raise CheckpointError(f"{name} has the shapes {shapes}; {way_out}")
    return {name: torch.lerp(start[name].float(), tensor.float(), share) for name, tensor in trained.items()}


def _to_float16(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Converts floating-point tensors. Raises: CheckpointError when a number is too large for float16."""
    if not tensor.is_floating_point():
        return tensor
    halved = tensor.half()
    if not torch.isfinite(halved).all():
        raise CheckpointError(f"{name} holds numbers up to {tensor.abs().max():.3g}, but the largest float16 is 65504")
    return halved
