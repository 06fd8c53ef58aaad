"""The file of the API keys: their names, hashes and limits; never the keys themselves."""

from __future__ import annotations

import hashlib
import os
import secrets
import shlex
from collections import Counter
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import Field, TypeAdapter, ValidationError

from rerank.config.settings import Positive, Settings
from rerank.errors import ConfigError
from rerank.util.files import atomic_file, read_text
from rerank.util.validation import problems_of
from rerank.util.yaml_files import parse_yaml

#: Lets scanners for secrets find keys that were committed or logged.
_PREFIX = "rerank_"
#: 256 random bits, which nobody can guess from their hash. A slow hash, as for passwords, would add nothing.
_KEY_BYTES = 32


class CallerLimits(Settings):
    """Limits of the requests of one API key's holder; None: only the service's limits.

    Attributes:
        max_calls: number of its calls in flight. Further ones fail with RESOURCE_EXHAUSTED.
        max_queue_tokens: expected tokens of its requests in work; a request that exceeds it fails with
            RESOURCE_EXHAUSTED, unless it is the only one.
    """

    max_calls: Positive | None = None
    max_queue_tokens: Positive | None = None


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
    """The entries of the file; none if it is an empty list, `[]`, which refuses every call.

    Raises:
        ConfigError: the file cannot be read, has no list, an entry is invalid, or two have the same name. A file that
            is empty, as after a failed write, would refuse every call without anybody having decided it.
    """
    way_out = f"`rerank keys add NAME --keys {shlex.quote(str(path))}` writes it"
    try:
        text = read_text(path)
    except ConfigError as error:
        raise ConfigError(f"keys: {error}" if os.path.exists(path) else f"keys: {error}; {way_out}") from error
    keys = _parsed(text, path)
    if keys is None:
        raise ConfigError(f"keys: {path} is empty; {way_out}, and [] in it says that no key is valid")
    return keys


def _parsed(text: str, path: Path) -> tuple[APIKey, ...] | None:
    """The entries of the text of the file `path`; None if it has nothing but comments. Raises: see `read_keys`."""
    file = parse_yaml(text, f"keys: {path}")
    if file.content is None:
        return None
    try:
        keys = _KEYS.validate_python(file.content)
    except ValidationError as error:
        problems = problems_of(error, file.content, tuple[APIKey, ...], file.place_of, quote=False)
        form = "the file is a list with one dash per entry, of name, sha256 and limits"
        raise ConfigError(f"{problems}; {form}") from error
    names = [key.name for key in keys]
    if repeated := {name for name, count in Counter(names).items() if count > 1}:
        raise ConfigError(f"keys: {path}: {', '.join(sorted(repeated))} has several entries; give each another name")
    return keys


def add_key(path: Path, name: str, limits: CallerLimits) -> str:
    """Makes a key, appends its hash to the file, which is created if need be, and returns the key.

    Raises:
        ConfigError: the file is invalid or has the name already, the name is invalid, or the file cannot be written.
    """
    existing = read_text(path) if os.path.exists(path) else ""
    keys = _parsed(existing, path)
    if name in [key.name for key in keys or ()]:
        raise ConfigError(f"{path} has a key {name!r} already; delete its entry first, or choose another name")
    key = _PREFIX + secrets.token_urlsafe(_KEY_BYTES)
    entry = {"name": name, "sha256": hash_of_key(key)} | limits.model_dump(mode="json", exclude_none=True)
    try:
        APIKey.model_validate(entry)
    except ValidationError as error:
        raise ConfigError(f"name {name!r}: use 1 to 100 letters, digits and _ . @ -") from error
    comments = "".join(line for line in existing.splitlines(keepends=True) if line.startswith("#"))
    before = existing if keys else comments  # without the brackets of an empty list
    text = before + ("\n" if before and not before.endswith("\n") else "") + yaml.safe_dump([entry], sort_keys=False)
    _parsed(text, path)  # nothing can be appended to a list with entries in brackets
    try:
        with atomic_file(path) as temporary:
            temporary.touch(mode=0o600)
            temporary.write_text(text, encoding="utf-8")
            if existing:
                temporary.chmod(path.stat().st_mode)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}; choose a file that you may write") from error
    return key
