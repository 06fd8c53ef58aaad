"""What a checkpoint says about itself: made from what, by which command, with which template; in `rerank.json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from rerank.errors import CheckpointError, ConfigError
from rerank.files import atomic_file, sha256_of_files

MANIFEST_FILE = "rerank.json"
TEMPLATE_FILE = "template.yaml"


class Manifest(BaseModel):
    """Written by training, checked by serving.

    Attributes:
        base: the checkpoint or model that training started from, as it was given.
        base_revision: SHA-256 of its weights.
        weights_sha256: SHA-256 of this checkpoint's own weights.
        template_sha256: of `template.yaml`, which lies beside the manifest.
        window_size: the widest window that was trained on, in passages.
        passage_tokens: how much of a passage was shown; 0 where no text is.
        data: file name → SHA-256 of what was trained on.
        metrics: of the held-out lists, at the end.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1] = 1
    ranker: Literal["first", "pe-rank"]
    base: str
    base_revision: str
    weights_sha256: str
    template_sha256: str
    identifiers: Literal["letters", "numbers", ""] = ""
    window_size: int
    passage_tokens: int = 0
    command: str
    data: dict[str, str]
    metrics: dict[str, float]
    versions: dict[str, str]


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Replaces the folder's manifest, whole or not at all."""
    with atomic_file(folder / MANIFEST_FILE) as path:
        path.write_text(manifest.model_dump_json(indent=2) + "\n", encoding="utf-8")


def served_model(name_and_path: str) -> dict[str, object]:
    """NAME=PATH of a checkpoint with a manifest, as a model of the configuration, in windows as wide as in training.

    Raises:
        ConfigError: the text has no such form, or nothing says what kind of ranker the folder holds.
        CheckpointError: see `read_manifest`.
    """
    name, _, path = name_and_path.partition("=")
    if not name or not path:
        raise ConfigError(f"--model {name_and_path!r}: expected NAME=PATH")
    manifest = read_manifest(Path(path))
    if manifest is None:
        raise ConfigError(
            f"--model {name_and_path}: {path} holds no {MANIFEST_FILE}, so its ranker and template are not known; name "
            "them in a --config file"
        )
    size = manifest.window_size
    return {"name": name, "ranker": manifest.ranker, "path": path, "window_size": size, "stride": max(1, size // 2)}


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of a checkpoint, checked against the files beside it; None where there is none.

    Raises:
        CheckpointError: it cannot be read, or weights or template are not those that it names.
    """
    path = folder / MANIFEST_FILE
    if not path.is_file():
        return None
    try:
        manifest = Manifest.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, ValidationError) as error:
        raise CheckpointError(f"{path} is no manifest: {error}") from error
    _check(folder, "weights", manifest.weights_sha256, sorted(folder.glob("*.safetensors")))
    _check(folder, "template", manifest.template_sha256, [folder / TEMPLATE_FILE])
    return manifest


def _check(folder: Path, what: str, expected: str, files: list[Path]) -> None:
    if missing := [file.name for file in files if not file.is_file()] or ([] if files else ["*.safetensors"]):
        raise CheckpointError(f"{folder} holds no {', '.join(missing)}, which its {MANIFEST_FILE} speaks of")
    if (found := sha256_of_files(files)) != expected:
        raise CheckpointError(
            f"{folder}: the {what} have SHA-256 {found}, {MANIFEST_FILE} names {expected}; the checkpoint was changed "
            "after training: fetch it again, or remove the manifest to serve it as it is"
        )
