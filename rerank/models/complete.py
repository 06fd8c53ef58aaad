"""Checks that a model was loaded whole: transformers draws missing weights at random, and ignores unknown ones."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from rerank.errors import CheckpointError

#: An error message lists this many names; it counts the others.
_NAMED = 5


def check_complete(
    source: Path | str, loading_info: Mapping[str, Any], may_have: str = r"(?!)", may_lack: str = r"(?!)"
) -> None:
    """Compares the weights of a checkpoint with the weights of the model that its config.json describes.

    Args:
        loading_info: what `from_pretrained` returns with `output_loading_info`.
        may_have, may_lack: regular expressions; names that begin with a match may be unexpected, or missing.

    Raises:
        CheckpointError: a weight is missing, unexpected, or has another shape; the message names it.
    """
    missing = _others(loading_info["missing_keys"], may_lack)
    unexpected = _others(loading_info["unexpected_keys"], may_have)
    mismatched = sorted(str(key[0]) for key in loading_info["mismatched_keys"])
    named = [
        f"{what} {listed(names)}"
        for what, names in (("without", missing), ("with unknown", unexpected), ("with another shape of", mismatched))
        if names
    ]
    if named:
        raise CheckpointError(
            f"{source} does not fit its config.json: weights {'; '.join(named)}. Download it again, or use a "
            "checkpoint whose architecture transformers has without code from the checkpoint"
        )


def _others(names: Collection[str], pattern: str) -> list[str]:
    return sorted(name for name in names if not re.match(pattern, name))


def listed(names: Sequence[str]) -> str:
    """Joins the first names, and counts the others."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
