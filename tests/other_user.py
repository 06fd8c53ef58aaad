"""A user who may read only what everyone may, also where the tests run as root."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: The user `nobody`.
_UID = 65534


@contextmanager
def other_user() -> Iterator[None]:
    """Runs the block without root's rights; files of mode 000 are closed to their owner as well."""
    if os.geteuid():
        yield
        return
    os.seteuid(_UID)
    try:
        yield
    finally:
        os.seteuid(0)


@contextmanager
def others_can_reach() -> Iterator[Path]:
    """A temporary folder for all users; the folders of pytest are for their owner."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)
