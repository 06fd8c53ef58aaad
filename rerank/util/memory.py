"""Measures the memory of this process, and gives freed memory back."""

from __future__ import annotations

import ctypes
import gc
import os
from pathlib import Path

import torch

_STATM = Path("/proc/self/statm")


def memory_bytes() -> int:
    """Returns the resident memory of this process with its memory on the current GPU; 0 where the former is unknown."""
    if not _STATM.exists():
        return 0
    resident = int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return resident + (torch.cuda.memory_allocated() if torch.cuda.is_available() else 0)


def free_memory() -> None:
    """Collects what nothing refers to any more, also of models that were loaded at the start, and gives it back."""
    is_frozen = gc.get_freeze_count() > 0
    gc.unfreeze()
    gc.collect()
    if is_frozen:
        gc.freeze()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    if hasattr(libc := ctypes.CDLL(None), "malloc_trim"):  # of glibc
        libc.malloc_trim(0)
