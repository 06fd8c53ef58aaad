"""The device's "out of memory" under the name that callers without torch know."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

#: What torch calls its allocator on a CPU, whose failure is a plain RuntimeError.
_CPU_ALLOCATOR = "DefaultCPUAllocator"


@contextmanager
def named_memory_errors() -> Iterator[None]:
    """Raises: MemoryError when torch ran out of memory inside; what failed is freed, so that less may be tried."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        torch.cuda.empty_cache()
        raise MemoryError(str(error)) from error
    except RuntimeError as error:
        if _CPU_ALLOCATOR not in str(error):
            raise
        raise MemoryError(str(error)) from error
