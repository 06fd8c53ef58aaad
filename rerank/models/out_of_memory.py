"""Translates torch's out-of-memory errors for code that does not import torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

#: The name of torch's allocator on a CPU, whose failure is a plain RuntimeError.
_CPU_ALLOCATOR = "DefaultCPUAllocator"


@contextmanager
def translate_out_of_memory() -> Iterator[None]:
    """Raises torch's out-of-memory errors as MemoryError, and frees memory for another try."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, torch.OutOfMemoryError) and _CPU_ALLOCATOR not in str(error):
            raise
        torch.cuda.empty_cache()
        raise MemoryError(str(error)) from error
