"""Reads the configuration and the weights of a checkpoint, and packs them for distribution."""

from __future__ import annotations

import pickle
import re
import shutil
from pathlib import Path
from typing import TypeAlias

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, PretrainedConfig

from rerank.checkpoints.load_errors import loading
from rerank.checkpoints.manifest import MANIFEST_FILE, read_manifest, write_manifest
from rerank.checkpoints.settings_files import ADAPTER_FILE, read_settings
from rerank.errors import CheckpointError
from rerank.util.files import sha256_of_files

#: Prefix of the architecture's name in PE-Rank's published checkpoints.
_EMBED_PREFIX = "embed_"
_WEIGHTS_FILES = ("model*.safetensors", "pytorch_model*.bin")
#: Name → tensor.
Weights: TypeAlias = dict[str, torch.Tensor]

_ADAPTER_WEIGHTS = "adapter_model.safetensors"


def read_config(checkpoint: Path) -> PretrainedConfig:
    """Reads config.json without loading code of the folder. PE-Rank's "embed_mistral" is read as "mistral".

    Raises:
        CheckpointError: the folder holds no configuration that transformers can read.
    """
    if not (checkpoint / "config.json").is_file():
        if (checkpoint / ADAPTER_FILE).is_file():
            raise CheckpointError(
                f"{checkpoint} is an adapter without the config.json of a PE-Rank checkpoint; give the folder of the "
                "finished training, or an adapter that was merged into its base by merge_and_unload of peft"
            )
        raise CheckpointError(f"{checkpoint} holds no config.json; give the folder of a checkpoint")
    with loading("the architecture of", path := checkpoint / "config.json"):
        settings = read_settings(path)
        model_type = str(settings.get("model_type"))
        if model_type.startswith(_EMBED_PREFIX):
            architecture = model_type.removeprefix(_EMBED_PREFIX)
            return AutoConfig.for_model(architecture).from_dict(settings | {"model_type": architecture})
        return AutoConfig.from_pretrained(checkpoint, local_files_only=True, trust_remote_code=False)


def read_weights(checkpoint: Path, prefix: str = "") -> dict[str, torch.Tensor]:
    """The tensors of the checkpoint whose names begin with the prefix, by name, on the CPU.

    Raises:
        CheckpointError: see `weight_files`; or a file is neither in the safetensors format nor in torch's.
    """
    weights: dict[str, torch.Tensor] = {}
    for path in weight_files(checkpoint):
        weights |= _read_safetensors(path, prefix) if path.suffix == ".safetensors" else read_torch_file(path)
    return {name: tensor for name, tensor in weights.items() if name.startswith(prefix)}


def _read_safetensors(path: Path, prefix: str) -> dict[str, torch.Tensor]:
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys() if name.startswith(prefix)}  # noqa: SIM118
    except SafetensorError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error


def read_torch_file(path: Path) -> dict[str, torch.Tensor]:
    """Returns the tensors of a file that torch.save wrote; no code in it is run.

    Raises:
        CheckpointError: the file holds something else.
    """
    try:
        return dict(torch.load(path, map_location="cpu", weights_only=True))
    except (pickle.UnpicklingError, RuntimeError, EOFError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} is not a dictionary of tensors: {error}") from error


def weight_files(checkpoint: Path) -> list[Path]:
    """Returns the files of the weights: in the safetensors format, or else torch's.

    Raises:
        CheckpointError: the folder has no weights, or fewer files than their names say, as in
            model-00001-of-00002.safetensors.
    """
    for pattern in _WEIGHTS_FILES:
        if found := sorted(checkpoint.glob(pattern)):
            stated = re.search(r"-of-(\d+)\.", found[0].name)
            if stated and len(found) < int(stated[1]):
                names = ", ".join(path.name for path in found)
                raise CheckpointError(f"{checkpoint} holds {names} alone; download the checkpoint again")
            return found
    raise CheckpointError(f"{checkpoint} holds no {' or '.join(_WEIGHTS_FILES)}; give the folder of a checkpoint")


def pack(checkpoint: Path, out: Path, start: Path | None = None, share: float = 1.0) -> None:
    """Packs a trained checkpoint for distribution: weights in float16, in one file of the empty folder `out`.

    With `start`, the weights are interpolated between the start and the end of the training (WiSE-FT, Wortsman et al.,
    CVPR 2022): a smaller `share` keeps less of the training, and loses less on data unlike the training's.

    Args:
        start: checkpoint that the training started from.
        share: weight of the trained weights in the interpolation: 0 gives the weights of `start`, 1 the trained ones.

    Raises:
        CheckpointError: the checkpoint has no manifest or does not match it, its weights and those of `start` differ in
            names or shapes, or a number exceeds the range of float16.
    """
    manifest = read_manifest(checkpoint)
    if manifest is None:
        raise CheckpointError(f"{checkpoint} holds no {MANIFEST_FILE}; give the `final` folder of a training run")
    trained = _read(checkpoint)
    if start is not None:
        trained = _interpolated(trained, _read(start), share)
        command = f"{manifest.command} && rerank checkpoint pack --start {start.name} --share {share}"
        # the metrics were measured with the trained weights
        manifest = manifest.model_copy(update={"command": command, "metrics": {}})
    weights = {name: _to_float16(name, tensor) for name, tensor in trained.items()}
    written = out / (_ADAPTER_WEIGHTS if _is_adapter(checkpoint) else "model.safetensors")
    save_file(weights, written, metadata={"format": "pt"})
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
