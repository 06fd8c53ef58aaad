"""Loads one model at a time, checks that all its weights were read, and turns exceptions of libraries into a
CheckpointError.

transformers would draw missing weights at random and ignore unknown ones.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rerank.checkpoints.settings_files import check_settings
from rerank.errors import CheckpointError, RerankError, is_rust_panic
from rerank.util.files import denied

#: Held by the thread that loads a model. While transformers builds a model, it replaces functions of its classes and of
#: torch and the default dtype. If two loads overlapped, the replacements of one would stay after both.
LOADING = threading.RLock()

_MAX_REASON_CHARS = 300
_WAY_OUT = "copy the checkpoint again, or use another one"
#: An error message lists this many names, and gives the number of the others.
_MAX_NAMED = 5


@contextmanager
def loading(subject: str, folder: Path) -> Iterator[None]:
    """Checks a folder before the wrapped code loads it, and turns exceptions of the code into a CheckpointError.

    Every model of the service is loaded in such a block, which waits until no other thread loads a model.

    A damaged file makes the libraries raise almost anything: a KeyError for a missing setting, a ZeroDivisionError for
    a model without heads, an AttributeError for a text instead of an object.

    Args:
        subject: what the caller loads, for the message, such as "encoder".
        folder: the model's folder, or a file in it.

    Raises:
        CheckpointError: the folder names code or sizes that are refused, or the wrapped code raised an exception. A
            RerankError passes as it is.
    """
    try:
        with LOADING:
            check_settings(folder)
            yield
    except CheckpointError as error:
        if str(folder) in str(error):
            raise
        raise CheckpointError(f"{subject} {folder} cannot be loaded: {error}") from error
    except RerankError:
        raise
    except BaseException as error:
        if not (isinstance(error, Exception) or is_rust_panic(error)):
            raise
        if isinstance(error, PermissionError) and (problem := denied(Path(str(error.filename)))):
            raise CheckpointError(f"{subject} {folder} cannot be loaded: {problem}") from error
        is_memory = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"  # of torch
        way_out = "take a smaller model, or another device" if is_memory else _WAY_OUT
        raise CheckpointError(f"{subject} {folder} cannot be loaded: {_reason(error)}; {way_out}") from error


def _reason(error: BaseException) -> str:
    text = " ".join(str(error).split())
    text = text if len(text) <= _MAX_REASON_CHARS else f"{text[:_MAX_REASON_CHARS]}…"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def check_complete(
    source: Path | str, loading_info: Mapping[str, Any], may_have: str = r"(?!)", may_lack: str = r"(?!)"
) -> None:
    """Compares the weights of a checkpoint with the weights of the model that its config.json describes.

    Args:
        source: the checkpoint, for the error.
        loading_info: what `from_pretrained` returns with `output_loading_info`.
        may_have: regular expression for the beginning of a name: the checkpoint may have such weights, which the model
            does not use.
        may_lack: regular expression for the beginning of a name: the checkpoint may lack such weights.

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
    """Returns the first five names, joined by commas, and the number of the others."""
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(names[:_MAX_NAMED]) + more
