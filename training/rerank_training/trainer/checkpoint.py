"""Writes a trained checkpoint for serving: weights, tokenizer, prompt template and manifest in one folder."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

from safetensors import SafetensorError
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from transformers import PreTrainedTokenizerBase, Trainer

from rerank.checkpoints.manifest import TEMPLATE_FILE, CheckpointManifest, TrainedRanker, write_manifest
from rerank.errors import ConfigError
from rerank.models.smollm2 import locate_causal_lm
from rerank.prompting.templates import Template
from rerank.util.files import atomic_folder, sha256_of_files
from rerank_training.trainer.flags import ListFiles
from rerank_training.trainer.processes import is_lost_process

_PACKAGES = ("torch", "transformers", "peft")


def write_checkpoint(
    folder: Path,
    model: Any,
    tokenizer: PreTrainedTokenizerBase | None,
    template: bytes | None,
    manifest: CheckpointManifest,
) -> None:
    """Writes all files to a temporary folder and renames it to `folder`.

    Args:
        model: an object with `save_pretrained`; an adapter is saved without its base.
        tokenizer: None if the checkpoint uses that of the encoder.
        template: content of the template file; None for a ranker without a prompt.
        manifest: complete except for `weights_sha256`, which is filled in.

    Raises:
        ConfigError: `folder` exists, or the disk is full.
    """
    with report_write_errors(folder), atomic_folder(folder) as temporary:
        model.save_pretrained(temporary)
        (temporary / "README.md").unlink(missing_ok=True)  # peft's empty form of a model card
        if tokenizer is not None:
            tokenizer.save_pretrained(temporary)
        if template is not None:
            (temporary / TEMPLATE_FILE).write_bytes(template)
        sha256 = sha256_of_files(sorted(temporary.glob("*.safetensors")))
        write_manifest(temporary, manifest.model_copy(update={"weights_sha256": sha256}))


def gather_weights(trainer: Trainer) -> None:
    """Gives the main process all weights of a model that FSDP divides among the processes, to save it.

    All processes must call it after the last step. The weights are on the CPU.
    """
    model = cast(nn.Module, trainer.model)
    if not trainer.is_fsdp_enabled:
        return
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights = cast(Mapping[str, Tensor], get_model_state_dict(model, options=options))
    for name, tensor in weights.items():
        owner, _, attribute = name.rpartition(".")
        module = model.get_submodule(owner)
        is_parameter = attribute in module._parameters
        setattr(module, attribute, nn.Parameter(tensor, requires_grad=False) if is_parameter else tensor)


@contextmanager
def report_write_errors(folder: Path) -> Iterator[None]:
    """Turns the exceptions that libraries raise on a full disk into a ConfigError. torch raises RuntimeError."""
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        if is_lost_process(error):
            raise
        raise ConfigError(
            f"{folder} cannot be written: {error}; free disk space and give the same command again, which resumes from "
            "the last save"
        ) from error


def ranker_manifest(
    ranker: TrainedRanker,
    arguments: ListFiles,
    template: Template | None,
    metrics: Mapping[str, float],
    *,
    window_size: int,
    **others: Any,
) -> CheckpointManifest:
    """The manifest of a trained ranker with the fields that every ranker has, and others of this one.

    The hash of the weights is missing; `write_checkpoint` adds it.
    """
    return CheckpointManifest(
        ranker=ranker,
        weights_sha256="",
        template_sha256=template.sha256 if template else "",
        window_size=window_size,
        command=shlex.join([f"train-{ranker}", *sys.argv[1:]]),
        data=data_hashes([arguments.lists, arguments.eval_lists, arguments.qrels]),
        metrics={key.removeprefix("eval_"): value for key, value in metrics.items()},
        versions=package_versions(),
        **others,
    )


def data_hashes(paths: Iterable[str | None]) -> dict[str, str]:
    """File name → SHA-256, for those of the paths that are given."""
    return {Path(path).name: sha256_of_files([Path(path)]) for path in paths if path}


def package_versions() -> dict[str, str]:
    """Versions of the packages that influence the trained weights."""
    return {name: version(name) for name in _PACKAGES}


def base_revision(base: str, model: Any) -> str:
    """SHA-256 of the base's weights for a folder, the commit for a hub model; empty if neither is known."""
    folder = Path(locate_causal_lm(base))
    if folder.is_dir():
        return sha256_of_files(sorted(folder.glob("*.safetensors")))
    return str(getattr(model.config, "_commit_hash", None) or "")
