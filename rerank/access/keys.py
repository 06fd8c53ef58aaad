"""API keys: finds the caller of a request by its header `authorization: Bearer KEY`, for gRPC and HTTP alike."""

from __future__ import annotations

import hmac
import logging
import time
from pathlib import Path

from rerank.access.key_file import APIKey, hash_of_key, read_keys
from rerank.errors import ConfigError, Unauthenticated
from rerank.util.files import file_version

log = logging.getLogger(__name__)

#: Seconds between two checks of the file.
_CHECK_S = 1.0
#: The most keys that the log names as gone.
_NAMED = 10


class KeyStore:
    """The keys of a file, which is read again within a second of a change.

    For use on one thread. A file that has become unreadable, invalid or empty changes nothing: an error is logged, and
    the keys that were read before stay valid. An empty list, `[]`, revokes all of them.

    Args:
        path: see `rerank.access.key_file`.

    Raises:
        ConfigError: the file cannot be read, or is invalid.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._keys: tuple[APIKey, ...] = ()
        self._checked_s = time.monotonic()
        self._version = file_version(path)
        self._set(read_keys(path))

    def authenticate(self, authorization: str | None) -> APIKey:
        """The entry of the key that the header `authorization` has.

        Args:
            authorization: the header's value, "Bearer KEY"; None if the request has no such header.

        Raises:
            Unauthenticated: there is no header, it has another form, or no entry of the file has this key.
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
        for entry in self._keys:  # all of them, so that the time tells nothing about a key
            if hmac.compare_digest(given, entry.sha256):
                found = entry
        if found is None:
            raise Unauthenticated("the API key is unknown or was revoked; ask the operator for another one")
        return found

    def _reload_if_changed(self) -> None:
        self._checked_s = time.monotonic()
        if (version := file_version(self._path)) == self._version:
            return
        self._version, before = version, {key.name for key in self._keys}
        try:
            self._set(read_keys(self._path))
            gone = sorted(before - {key.name for key in self._keys})
            log.info("%d API keys read from %s", len(self._keys), self._path)
            if gone:  # half a file is a shorter list, too
                named = ", ".join(gone[:_NAMED]) + (", …" if len(gone) > _NAMED else "")
                log.warning("%d of %d API keys are gone from %s: %s", len(gone), len(before), self._path, named)
        except ConfigError as error:
            log.error("%s; the keys that were read before stay valid", error)

    def _set(self, keys: tuple[APIKey, ...]) -> None:
        self._keys = keys
        if not keys:
            log.warning("%s is an empty list: no API key is valid, and every call is refused", self._path)
