"""The file of the API keys: their names, hashes and limits; never the keys themselves."""

from __future__ import annotations

import hashlib
import secrets
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import Field, TypeAdapter, ValidationError

from rerank.errors import ConfigError
from rerank.files import atomic_file
from rerank.service.callers import CallerLimits

#: A prefix by which scanners for secrets can find keys that were committed or logged.
_PREFIX = "rerank_"
#: 256 random bits, which nobody can guess from their hash; a slow hash, as for passwords, would add nothing.
_KEY_BYTES = 32


class APIKey(CallerLimits):
    """An entry of the file.

    Attributes:
        name: who has the key; the log and errors name it.
        sha256: SHA-256 of the key, in hexadecimal digits.
    """

    name: Annotated[str, Field(pattern=r"^[\w.@-]{1,100}$")]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


_KEYS = TypeAdapter(tuple[APIKey, ...])


def hash_of_key(key: str) -> str:
    """SHA-256 of a key, in hexadecimal digits."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def read_keys(path: Path) -> tuple[APIKey, ...]:
    """The entries of the file, possibly none.

    Raises:
        ConfigError: the file cannot be read, an entry is invalid, or two have the same name.
    """
    try:
        return _parsed(path.read_text(encoding="utf-8"), path)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"keys: {path} cannot be read: {error}; `rerank keys add NAME --file {path}` writes it"
        ) from error


def _parsed(text: str, path: Path) -> tuple[APIKey, ...]:
    """The entries of the text of the file `path`. Raises: see `read_keys`."""
    form = "it is a list with one dash per entry, of name, sha256 and limits"
    try:
        keys = _KEYS.validate_python(yaml.safe_load(text) or ())
    except yaml.YAMLError as error:
        raise ConfigError(f"keys: {path} is no YAML: {error}; {form}") from error
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, each['loc'])) or 'file'}: {each['msg']}" for each in error.errors())
        raise ConfigError(f"keys: {path}: {problems}; {form}") from error
    names = [key.name for key in keys]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise ConfigError(f"keys: {path}: {', '.join(sorted(repeated))} has several entries; give each another name")
    return keys


def add_key(path: Path, name: str, limits: CallerLimits) -> str:
    """Makes a key, appends its hash to the file, which is created if need be, and returns the key.

    Raises:
        ConfigError: the file is invalid or has the name already, the name is invalid, or the file cannot be written.
    """
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    if name in [key.name for key in _parsed(before, path)]:
        raise ConfigError(f"{path} has a key {name!r} already; delete its entry first, or choose another name")
    key = _PREFIX + secrets.token_urlsafe(_KEY_BYTES)
    entry = {"name": name, "sha256": hash_of_key(key)} | limits.model_dump(mode="json", exclude_none=True)
    try:
        APIKey.model_validate(entry)
    except ValidationError as error:
        raise ConfigError(f"name {name!r}: use 1 to 100 letters, digits and _ . @ -") from error
    text = before + ("\n" if before and not before.endswith("\n") else "") + yaml.safe_dump([entry], sort_keys=False)
    _parsed(text, path)  # nothing can be appended to a list in brackets
    try:
        with atomic_file(path) as temporary:
            temporary.touch(mode=0o600)
            temporary.write_text(text, encoding="utf-8")
            if before:
                temporary.chmod(path.stat().st_mode)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}; choose a file that you may write") from error
    return key
