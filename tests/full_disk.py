"""A disk without space, for the tests of what is written."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def largest_file(n_bytes: int) -> Iterator[None]:
    """The kernel refuses longer files, like a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    now_full(n_bytes)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def now_full(n_bytes: int) -> None:
    """Lowers the limit within a block of `largest_file`, whose end restores it."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
