"""What torch raises when memory runs out, on either device, has one name; nothing else is renamed."""

from __future__ import annotations

import pytest
import torch

from rerank.models.out_of_memory import named_memory_errors


def test_cpu_out_of_memory() -> None:
    with pytest.raises(MemoryError, match="DefaultCPUAllocator"), named_memory_errors():
        torch.empty(2**50, dtype=torch.uint8)


def test_cuda_out_of_memory() -> None:
    with pytest.raises(MemoryError, match=r"tried to allocate 2\.00 GiB"), named_memory_errors():
        raise torch.OutOfMemoryError("CUDA out of memory: tried to allocate 2.00 GiB")


@pytest.mark.parametrize("error", [RuntimeError("shapes do not match"), ValueError("x"), KeyError("y")])
def test_other_errors_stay_what_they_are(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, named_memory_errors():
        raise error
    assert caught.value is error


@pytest.mark.gpu
def test_real_cuda_out_of_memory() -> None:
    with pytest.raises(MemoryError), named_memory_errors():
        torch.empty(2**50, dtype=torch.uint8, device="cuda")


def test_function_may_be_decorated() -> None:
    @named_memory_errors()
    def allocate() -> None:
        torch.empty(2**50, dtype=torch.uint8)

    for _ in range(2):
        with pytest.raises(MemoryError):
            allocate()
