"""Measures the memory of this process and its GPUs and the memory that is available, and returns freed memory."""

from __future__ import annotations

import ctypes
import gc
import os
import re
from pathlib import Path

import torch

_STATM = Path("/proc/self/statm")
_MEMINFO = Path("/proc/meminfo")
#: The folder of the files on the memory of the process's container. A limit "max" means no limit.
_CGROUP = Path("/sys/fs/cgroup")


def memory_bytes() -> int:
    """The resident memory of this process in bytes; 0 if it is unknown."""
    if not _STATM.exists():
        return 0
    return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def gpu_memory_bytes() -> int:
    """The memory of this process on all GPUs in bytes, after it returned the cached memory that is not in use."""
    if not torch.cuda.is_initialized():
        return 0
    torch.cuda.empty_cache()
    return sum(torch.cuda.memory_reserved(device) for device in range(torch.cuda.device_count()))


def available_bytes(device: torch.device) -> int | None:
    """The bytes that this process can still allocate on a device; None if they are unknown.

    On a CPU, the limit of the container counts, too. The page cache counts as available.
    """
    if device.type == "cuda":
        reserved = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + reserved
    if device.type != "cpu" or not _MEMINFO.exists():
        return None
    found = re.search(r"^MemAvailable: +(\d+) kB$", _MEMINFO.read_text(), re.MULTILINE)
    bounds = [1024 * int(found[1])] if found else []
    limit = _CGROUP / "memory.max"
    if limit.exists() and (most := limit.read_text().strip()) != "max":
        cached = re.search(r"^inactive_file (\d+)$", (_CGROUP / "memory.stat").read_text(), re.MULTILINE)
        taken = int((_CGROUP / "memory.current").read_text()) - (int(cached[1]) if cached else 0)
        bounds.append(int(most) - taken)
    return min(bounds, default=None)


def free_memory() -> None:
    """Collects all garbage, and returns the memory to the system and the GPUs."""
    is_frozen = gc.get_freeze_count() > 0
    gc.unfreeze()
    gc.collect()
    if is_frozen:
        gc.freeze()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    if hasattr(libc := ctypes.CDLL(None), "malloc_trim"):  # of glibc
        libc.malloc_trim(0)
