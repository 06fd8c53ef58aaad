"""Reads the settings of a FIRST checkpoint from its manifest; the operator's settings must agree with it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rerank.checkpoints.manifest import MANIFEST_FILE, TEMPLATE_FILE, CheckpointManifest, read_manifest
from rerank.config import FirstModel
from rerank.errors import CheckpointError
from rerank.models.loading import base_model_of
from rerank.prompting.identifiers import IdentifierKind
from rerank.prompting.templates import load_template
from rerank.util.files import sha256_of_files


@dataclass(frozen=True, slots=True)
class FirstSettings:
    """Holds the settings of a checkpoint's training; without a manifest, the operator's or the defaults."""

    template: str
    identifiers: IdentifierKind
    passage_tokens: int


def first_settings(model: FirstModel) -> FirstSettings:
    """Returns the settings of a model's manifest; without a manifest, the operator's or the defaults.

    Raises:
        CheckpointError: the checkpoint's manifest is broken, belongs to another kind of ranker, or contradicts the
            operator's template or identifiers; or the base of an adapter is not the one that it was trained on.
        ConfigError: there is no such template.
    """
    manifest = read_manifest(model.path)
    if manifest is None:
        return FirstSettings(
            model.template or "first", IdentifierKind(model.identifiers or "letters"), model.passage_tokens or 0
        )
    _check(model, manifest)
    return FirstSettings(
        str(model.path / TEMPLATE_FILE),
        IdentifierKind(manifest.identifiers),
        manifest.passage_tokens if model.passage_tokens is None else model.passage_tokens,
    )


def _check(model: FirstModel, manifest: CheckpointManifest) -> None:
    if manifest.ranker != "first":
        raise CheckpointError(f"{model.path} is a {manifest.ranker} checkpoint; configure it with that ranker")
    if model.template is not None and (given := load_template(model.template).sha256) != manifest.template_sha256:
        raise CheckpointError(
            f"{model.path} was trained with template {manifest.template_sha256}, but {model.template} is {given}; "
            "leave template out to use the checkpoint's template"
        )
    if model.identifiers not in (None, manifest.identifiers):
        raise CheckpointError(
            f"{model.path} was trained with {manifest.identifiers}, not with {model.identifiers}; leave identifiers out"
        )
    base = Path(base_model_of(model.path))
    if base != model.path and base.is_dir():
        _check_base(model.path, base, manifest.base_revision)


def _check_base(adapter: Path, base: Path, expected: str) -> None:
    if (found := sha256_of_files(sorted(base.glob("*.safetensors")))) != expected:
        raise CheckpointError(
            f"{adapter} was trained on weights {expected} ({MANIFEST_FILE}), but its base {base} holds {found}; "
            "restore the base"
        )
