"""Settings that a training takes from the manifest of its base, so that both read the same prompts."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TypeVar

from rerank.checkpoints.manifest import CheckpointManifest, TrainedRanker, read_manifest

logger = logging.getLogger(__name__)

T = TypeVar("T")


def read_base_manifest(base: str, ranker: TrainedRanker) -> CheckpointManifest | None:
    """The manifest of a base that was trained as this kind of ranker; None for any other base.

    Raises:
        CheckpointError: see `read_manifest`.
    """
    manifest = read_manifest(Path(base)) if Path(base).is_dir() else None
    return manifest if manifest is not None and manifest.ranker == ranker else None


def setting(name: str, given: T | None, base: CheckpointManifest | None, default: T) -> T:
    """The value of a flag; without the flag, the base's training's; without either, the default.

    A flag that differs from the base's training is logged as a warning with both values.

    Args:
        name: of a field of the manifest, and of the flag.
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
