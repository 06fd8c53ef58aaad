"""The manifest of a base, and the checkpoint of a training: weights, tokenizer, template and manifest in one folder."""

from __future__ import annotations

import hashlib
import logging
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar, cast

from peft import LoraConfig, PeftModel, get_peft_model
from safetensors import SafetensorError
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rerank.checkpoints.manifest import (
    TEMPLATE_FILE,
    CheckpointManifest,
    TrainedRanker,
    read_manifest,
    weights_in,
    write_manifest,
)
from rerank.errors import ConfigError
from rerank.models.smollm2 import locate_causal_lm
from rerank.prompting.templates import Template
from rerank.util.files import atomic_folder, sha256_of_files
from rerank_training.trainer.flags import LORA_ALPHA, ListArguments
from rerank_training.trainer.processes import is_lost_process

logger = logging.getLogger(__name__)

T = TypeVar("T")

_PACKAGES = ("torch", "transformers", "peft")


def base_folder(base: str, weights: bool = False) -> Path:
    """The folder of a base. A model on the hub is downloaded: all its files if `weights` is set, otherwise no weights.

    Raises:
        ConfigError, CheckpointError: see `rerank.checkpoints.hub.download`.
    """
    return Path(locate_causal_lm(base, weights))  # the name of a bundled model is never a folder here


def read_base_manifest(base: Path, ranker: TrainedRanker) -> CheckpointManifest | None:
    """The manifest of a base that was trained as this kind of ranker; None for all other bases.

    Raises:
        CheckpointError: see `read_manifest`.
    """
    manifest = read_manifest(base) if base.is_dir() else None
    return manifest if manifest is not None and manifest.ranker == ranker else None


def setting(name: str, given: T | None, base: CheckpointManifest | None, default: T) -> T:
    """The value of a flag if it is given, otherwise the value in the base's manifest, otherwise the default.

    Warns of a flag that differs from the manifest, with both values.

    Args:
        name: name of the field of the manifest and of the flag.
        given: value of the flag; None if it is not given.
    """
    trained: T | None = getattr(base, name, None)
    if trained is None or trained == "":
        return default if given is None else given
    if given is None:
        return trained
    if given != trained:
        flag = f"--{name.replace('_', '-')}"
        logger.warning(
            "%s %s: the base was trained with %s, so it has to learn the difference; leave %s out to keep %s",
            *(flag, given, trained, flag, trained),
        )
    return given


def write_checkpoint(
    folder: Path,
    ranker: TrainedRanker,
    arguments: ListArguments,
    metrics: Mapping[str, float],
    model: Any,
    tokenizer: PreTrainedTokenizerBase | None = None,
    template: Template | None = None,
    **others: Any,
) -> None:
    """Writes all files to a temporary folder and renames it to `folder`.

    Args:
        metrics: metrics of the run, see `train`.
        model: an object with `save_pretrained`; an adapter is saved without its base.
        tokenizer: the tokenizer to save; None if the checkpoint uses that of the encoder.
        template: the template of the prompt; None for a ranker without a prompt.
        others: further fields of the manifest.

    Raises:
        ConfigError: `folder` exists, or the disk is full.
    """
    with report_write_errors(folder), atomic_folder(folder) as temporary:
        model.save_pretrained(temporary)
        (temporary / "README.md").unlink(missing_ok=True)  # peft's empty form of a model card
        if tokenizer is not None:
            tokenizer.save_pretrained(temporary)
        if template is not None:
            (temporary / TEMPLATE_FILE).write_bytes(template.source)
        manifest = CheckpointManifest(
            ranker=ranker,
            window_size=arguments.window_size,
            weights_sha256=sha256_of_files(weights_in(temporary)),
            template_sha256=hashlib.sha256(template.source).hexdigest() if template else "",
            command=shlex.join([f"train-{ranker}", *sys.argv[1:]]),
            data=data_hashes([arguments.lists, arguments.eval_lists, arguments.qrels]),
            metrics={key.removeprefix("eval_"): value for key, value in metrics.items()},
            versions=package_versions(),
            **others,
        )
        write_manifest(temporary, manifest)


@contextmanager
def report_write_errors(folder: Path) -> Iterator[None]:
    """Turns the exceptions of libraries on a full disk, a RuntimeError in torch, into a ConfigError."""
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        if is_lost_process(error):
            raise
        raise ConfigError(
            f"{folder} cannot be written: {error}; free disk space and give the same command again, which resumes from "
            "the last save"
        ) from error


def data_hashes(paths: Iterable[str | None]) -> dict[str, str]:
    """File name → SHA-256 in hexadecimal digits, for the paths that are not None."""
    return {Path(path).name: sha256_of_files([Path(path)]) for path in paths if path}


def package_versions() -> dict[str, str]:
    """Versions of the packages that influence the trained weights."""
    return {name: version(name) for name in _PACKAGES}


def add_adapter(model: PreTrainedModel, rank: int) -> PeftModel:
    """A model with a new LoRA adapter (Hu et al. 2021) on all its linear layers, which are changed in place."""
    logger.info("LoRA: rank %d, alpha %d, scale %g", rank, LORA_ALPHA, LORA_ALPHA / rank)
    lora = LoraConfig(r=rank, lora_alpha=LORA_ALPHA, target_modules="all-linear")
    return cast(PeftModel, get_peft_model(model, lora))


def base_revision(base: str) -> str:
    """SHA-256 of the base's weights."""
    return sha256_of_files(sorted(Path(locate_causal_lm(base)).glob("*.safetensors")))
