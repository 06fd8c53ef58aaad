"""Counts the values in tokenizer.json and the tensors in a file of weights, before a library makes objects of them.

The libraries take up to 60 kB of memory for one value of a tokenizer's template, and log a line for each tensor that a
model lacks.
"""

from __future__ import annotations

import json
import struct
from functools import lru_cache
from pathlib import Path
from typing import Any

from rerank.errors import CheckpointError
from rerank.util.files import file_version
from rerank.util.json_values import has_more_values

#: The largest tokenizer.json. The largest published one, of Gemma 3, has 33 MB.
_MAX_TOKENIZER_BYTES = 128 * 1024 * 1024
#: The most values in a tokenizer.json. The one of Gemma 3 has some two million.
_MAX_TOKENIZER_VALUES = 8_000_000
#: The most values outside of the vocabulary and the added tokens. Published files have fewer than 200.
_MAX_OTHER_VALUES = 2000
#: The largest length that texts are padded to.
_MAX_PADDING = 1_000_000
#: The most tensors in a file of weights. Files of the largest published models have some 2,000.
_MAX_TENSORS = 50_000
#: The largest header of a file of weights. Headers of the largest published models have 300 kB.
_MAX_HEADER_BYTES = 16 * 1024 * 1024
_SAFETENSORS = ".safetensors"
_TENSOR = b'"data_offsets"'


def check_counts(path: Path) -> None:
    """Checks tokenizer.json, or a file of weights in the safetensors format; any other file passes.

    Raises:
        CheckpointError: the file has more values or tensors than a model; the message has both numbers.
    """
    if path.name == "tokenizer.json":
        _check_tokenizer(path, file_version(path))
    elif path.name.endswith(_SAFETENSORS):
        _check_header(path)


@lru_cache(maxsize=64)  # a folder is checked several times while it is loaded
def _check_tokenizer(path: Path, version: tuple[int, ...]) -> None:
    if path.stat().st_size > _MAX_TOKENIZER_BYTES:
        raise _too_much(path, f"{path.stat().st_size:,} bytes", f"{_MAX_TOKENIZER_BYTES:,}")
    content = path.read_bytes()
    if has_more_values(content, _MAX_TOKENIZER_VALUES):
        raise _too_much(path, f"more than {_MAX_TOKENIZER_VALUES:,} values", f"{_MAX_TOKENIZER_VALUES:,}")
    try:
        parts = json.loads(content)
    except (ValueError, RecursionError):
        return  # the library says what is wrong
    if not isinstance(parts, dict):
        return
    others = {key: part for key, part in parts.items() if key not in ("model", "added_tokens")}
    if (values := _values(others)) > _MAX_OTHER_VALUES:
        raise _too_much(path, f"{values:,} values beside its vocabulary", f"{_MAX_OTHER_VALUES:,}")
    if (length := _longest_padding(parts.get("padding"))) > _MAX_PADDING:
        raise _too_much(path, f"texts padded to {length:,} tokens", f"{_MAX_PADDING:,}")


def _values(content: Any) -> int:
    """The number of values at any depth."""
    found, waiting = 0, [content]
    while waiting:
        found += 1
        match waiting.pop():
            case dict() as part:
                waiting += part.values()
            case list() as part:
                waiting += part
    return found


def _longest_padding(padding: Any) -> int:
    """The largest number in the settings of padding."""
    found, waiting = 0, [padding]
    while waiting:
        match waiting.pop():
            case dict() as part:
                waiting += part.values()
            case int() as number:
                found = max(found, number)
    return found


def _check_header(path: Path) -> None:
    """Checks a safetensors header. A truncated file, or one of another format, passes: the library reports it."""
    with path.open("rb") as file:
        start = file.read(8)
        if len(start) < 8 or (size := struct.unpack("<Q", start)[0]) > path.stat().st_size:
            return
        if size > _MAX_HEADER_BYTES:
            raise _too_much(path, f"a header of {size:,} bytes", f"{_MAX_HEADER_BYTES:,}")
        if (tensors := file.read(size).count(_TENSOR)) > _MAX_TENSORS:
            raise _too_much(path, f"{tensors:,} tensors", f"{_MAX_TENSORS:,}")


def _too_much(path: Path, found: str, most: str) -> CheckpointError:
    return CheckpointError(f"{path} has {found}, and a model has at most {most}; copy the checkpoint again")
