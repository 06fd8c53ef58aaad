"""The result of a run: weights, tokenizer, template and manifest in one folder that serving takes as it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from transformers import PreTrainedTokenizerBase

from rerank.errors import ConfigError
from rerank.files import atomic_folder, sha256_of_files
from rerank.manifest import TEMPLATE_FILE, Manifest, write_manifest

_PACKAGES = ("torch", "transformers", "peft")


def write_result(
    folder: Path, model: Any, tokenizer: PreTrainedTokenizerBase | None, template: bytes, manifest: Manifest
) -> None:
    """Writes everything to a temporary folder, which then gets its name.

    Args:
        model: has `save_pretrained`; an adapter saves itself without its base.
        manifest: complete but for `weights_sha256`, which is filled in.

    Raises:
        ConfigError: `folder` exists, or the disk is full.
    """
    with naming_write_errors(folder), atomic_folder(folder) as building:
        model.save_pretrained(building)
        if tokenizer is not None:
            tokenizer.save_pretrained(building)
        (building / TEMPLATE_FILE).write_bytes(template)
        weights = sha256_of_files(sorted(building.glob("*.safetensors")))
        write_manifest(building, manifest.model_copy(update={"weights_sha256": weights}))


@contextmanager
def naming_write_errors(folder: Path) -> Iterator[None]:
    """Turns what the libraries raise on a full disk into a ConfigError. torch raises RuntimeError."""
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        raise ConfigError(
            f"{folder} cannot be written: {error}; make room and give the same command again: it goes on from the "
            "last save"
        ) from error


def data_hashes(paths: Iterable[str | None]) -> dict[str, str]:
    """File name → SHA-256, of the files that were given."""
    return {Path(path).name: sha256_of_files([Path(path)]) for path in paths if path}


def versions() -> dict[str, str]:
    """Of the packages that decide about the numbers."""
    return {name: version(name) for name in _PACKAGES}


def base_revision(base: str, model: Any) -> str:
    """SHA-256 of the base's weights, or the hub's commit; empty where neither is known."""
    folder = Path(base)
    if folder.is_dir():
        return sha256_of_files(sorted(folder.glob("*.safetensors")))
    return str(getattr(model.config, "_commit_hash", None) or "")
