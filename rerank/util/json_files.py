"""Reads and writes JSON files of this package, such as manifests, and refuses files that Python would misread."""

from __future__ import annotations

import json
import reprlib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rerank.errors import ConfigError
from rerank.util.files import atomic_file, read_text

#: Larger files are refused.
_MAX_BYTES = 16 * 1024 * 1024


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file of at most 16 MiB.

    Raises:
        ConfigError: the file cannot be read or is too large, holds no JSON object, has a key twice in one object, or
            has a number of thousands of digits or thousands of brackets inside one another.
    """
    text = read_text(path, _MAX_BYTES)
    try:
        content = json.loads(text, object_pairs_hook=_without_repetition)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}: line {error.lineno}: this is not JSON: {error.msg}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: expected an object in braces, found {type(content).__name__}")
    return content


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        repeated = next(name for name, count in counts.items() if count > 1)
        raise ValueError(f"the key {reprlib.repr(repeated)} is there twice")
    return content


def write_synced(path: Path, content: Mapping[str, Any]) -> None:
    """Replaces a file by the content as JSON, which is on disk when the function returns. Raises: OSError."""
    with atomic_file(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def read_saved(path: Path) -> dict[str, Any] | None:
    """The content of a JSON file that `write_synced` wrote; None if it is missing or cannot be read."""
    try:
        return read_json(path)
    except ConfigError:
        return None


def differences(stored: Mapping[str, object], current: Mapping[str, object]) -> str:
    """The settings that differ, for a message, such as "seed: 1 there, 2 now"; empty if all are equal.

    Settings inside of others are named by their path, as in service.encoder.name or models[1].window_size.

    Args:
        stored: the settings in a file.
        current: the settings of this run.
    """
    return "; ".join(f"{name}: {there} there, {now} now" for name, there, now in _differences("", stored, current))


def _differences(name: str, stored: object, current: object) -> Iterator[tuple[str, str, str]]:
    if isinstance(stored, Mapping | None) and isinstance(current, Mapping | None):
        there, now = stored or {}, current or {}
        for key in sorted(there.keys() | now.keys()):
            yield from _differences(f"{name}.{key}" if name else key, there.get(key), now.get(key))
    elif isinstance(stored, list) and isinstance(current, list) and len(stored) == len(current):
        for index, pair in enumerate(zip(stored, current, strict=True)):
            yield from _differences(f"{name}[{index}]", *pair)
    elif stored != current:
        yield name, _shown(stored), _shown(current)


def _shown(value: object) -> str:
    if value is None:
        return "not set"
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False, default=str)
