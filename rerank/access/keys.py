"""API keys: the file with their names, hashes and limits, but never the keys themselves; and authentication by it."""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import secrets
import shlex
import time
from collections import Counter
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import Field, TypeAdapter, ValidationError

from rerank.config.settings import Positive, Settings
from rerank.errors import ConfigError, Unauthenticated
from rerank.util.files import atomic_file, locked, read_text
from rerank.util.validation import problems_of
from rerank.util.yaml_files import parse_yaml

log = logging.getLogger(__name__)

#: A prefix by which scanners for secrets find keys that were committed or logged.
_PREFIX = "rerank_"
#: 256 random bits cannot be guessed from their hash, so a slow hash, as for passwords, is not needed.
_KEY_BYTES = 32
#: Seconds between two checks of the file.
_CHECK_S = 1.0
#: The log names at most this many removed keys.
_MAX_NAMED = 10


class CallerLimits(Settings):
    """Limits on the requests with one API key; None: only the service's limits.

    Attributes:
        max_calls: number of calls in flight. Further ones fail with RESOURCE_EXHAUSTED.
        max_queue_tokens: expected tokens of all requests in progress; a request that exceeds it fails with
            RESOURCE_EXHAUSTED, unless it is the only one.
    """

    max_calls: Positive | None = None
    max_queue_tokens: Positive | None = None


class APIKey(CallerLimits):
    """An entry of the file.

    Attributes:
        name: name of the key's holder, for the log and errors.
        sha256: SHA-256 of the key, in hexadecimal digits.
    """

    name: Annotated[str, Field(pattern=r"^[\w.@-]{1,100}$")]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


_KEYS = TypeAdapter(tuple[APIKey, ...])


def hash_of_key(key: str) -> str:
    """SHA-256 of a key, in hexadecimal digits."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def read_keys(path: Path) -> tuple[APIKey, ...]:
    """The entries of the file. An empty list, `[]`, has none, and every call is refused.

    Raises:
        ConfigError: the file cannot be read or has no list, an entry is invalid, or two entries have the same name. An
            empty file is an error, too, because it may come from a failed write.
    """
    return _listed(_text_of(path), path)


def _text_of(path: Path) -> str:
    """Reads the file of the keys. Raises: ConfigError."""
    try:
        return read_text(path)
    except ConfigError as error:
        way_out = "" if os.path.exists(path) else f"; {_way_out(path)}"
        raise ConfigError(f"keys: {error}{way_out}") from error


def _listed(text: str, path: Path) -> tuple[APIKey, ...]:
    """The entries of the text of the file `path`. Raises: see `read_keys`."""
    keys = _parsed(text, path)
    if keys is None:
        raise ConfigError(f"keys: {path} is empty; {_way_out(path)}, and [] in it says that no key is valid")
    return keys


def _way_out(path: Path) -> str:
    return f"`rerank keys add NAME --keys {shlex.quote(str(path))}` writes it"


def _parsed(text: str, path: Path) -> tuple[APIKey, ...] | None:
    """The entries of the text of the file `path`; None if it has nothing but comments. Raises: see `read_keys`."""
    file = parse_yaml(text, f"keys: {path}")
    if file.content is None:
        return None
    try:
        keys = _KEYS.validate_python(file.content)
    except ValidationError as error:
        problems = problems_of(error, file.content, tuple[APIKey, ...], file.file_and_line, quote=False)
        form = "the file is a list with one dash per entry, of name, sha256 and limits"
        raise ConfigError(f"{problems}; {form}") from error
    names = [key.name for key in keys]
    if repeated := {name for name, count in Counter(names).items() if count > 1}:
        raise ConfigError(f"keys: {path}: {', '.join(sorted(repeated))} has several entries; give each another name")
    return keys


def add_key(path: Path, name: str, limits: CallerLimits) -> str:
    """Makes a key, appends its hash to the file, and returns the key. Creates the file if it does not exist.

    A lock keeps other processes from adding keys at the same time.

    Raises:
        ConfigError: the file is invalid or has the name already, the name is invalid, or the file cannot be written.
    """
    try:
        with locked(path):
            return _add(path, name, limits)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}; choose a file that you may write") from error


def _add(path: Path, name: str, limits: CallerLimits) -> str:
    """See `add_key`. Raises: ConfigError, OSError."""
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
    with atomic_file(path) as temporary:
        temporary.touch(mode=0o600)
        temporary.write_text(text, encoding="utf-8")
        if existing:
            temporary.chmod(path.stat().st_mode)
    return key


class KeyStore:
    """The keys of a file, which is read again within a second of a change.

    For use on one thread. If the file becomes unreadable, invalid or empty, an error is logged, and the keys that were
    read before stay valid. An empty list, `[]`, revokes all keys.

    Args:
        path: see `read_keys`.

    Raises:
        ConfigError: the file cannot be read, or is invalid.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._keys: tuple[APIKey, ...] = ()
        self._checked_s = time.monotonic()
        #: Version of the file when it was read; None if it could not be read.
        self._text: str | None = _text_of(path)
        self._set(_listed(self._text, path))

    def authenticate(self, authorization: str | None) -> APIKey:
        """The entry of the key in the header `authorization`.

        Args:
            authorization: the header's value, "Bearer KEY"; None if the request has no such header.

        Raises:
            Unauthenticated: the header is missing or has another form, or no entry of the file has this key.
        """
        if time.monotonic() >= self._checked_s + _CHECK_S:
            self._reload_if_changed()
        scheme, _, key = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not key:
            raise Unauthenticated(
                "this service needs an API key; send the header `authorization: Bearer KEY`, or set RERANK_API_KEY "
                "for a command"
            )
        given, found = hash_of_key(key.strip()), None
        for entry in self._keys:  # all entries, so that the time reveals nothing about a key
            if hmac.compare_digest(given, entry.sha256):
                found = entry
        if found is None:
            raise Unauthenticated("the API key is unknown or was revoked; ask the operator for another one")
        return found

    def _reload_if_changed(self) -> None:
        """Compares the text of the file, because its modification time may stay the same after a change."""
        self._checked_s = time.monotonic()
        try:
            text = _text_of(self._path)
        except ConfigError as error:
            if self._text is not None:
                log.error("%s; the keys that were read before stay valid", error)
            self._text = None
            return
        if text == self._text:
            return
        self._text, before = text, {key.name for key in self._keys}
        try:
            self._set(_listed(text, self._path))
            removed = sorted(before - {key.name for key in self._keys})
            log.info("%d API keys read from %s", len(self._keys), self._path)
            if removed:  # maybe by mistake: a part of the file is a valid list, too
                named = ", ".join(removed[:_MAX_NAMED]) + (", …" if len(removed) > _MAX_NAMED else "")
                log.warning("%d of %d API keys are gone from %s: %s", len(removed), len(before), self._path, named)
        except ConfigError as error:
            log.error("%s; the keys that were read before stay valid", error)

    def _set(self, keys: tuple[APIKey, ...]) -> None:
        self._keys = keys
        if not keys:
            log.warning("%s is an empty list: no API key is valid, and every call is refused", self._path)
