"""Memory: what is left on a device, by the numbers of the system, its container and torch."""

from pathlib import Path

import pytest
import torch

from rerank.util import memory
from rerank.util.memory import available_bytes, gpu_memory_bytes, memory_bytes

CPU = torch.device("cpu")


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with 6 MiB left, whose process runs in no container with a limit."""
    (tmp_path / "meminfo").write_text("MemTotal:       16384 kB\nMemFree:  1024 kB\nMemAvailable:    6144 kB\n")
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    return tmp_path


def limit(system: Path, most: str, current: int, stat: str) -> None:
    (system / "memory.max").write_text(f"{most}\n")
    (system / "memory.current").write_text(f"{current}\n")
    (system / "memory.stat").write_text(stat)


def test_available_memory_is_what_the_system_says(system):
    assert available_bytes(CPU) == 6144 * 1024
    limit(system, "max", 5, "")
    assert available_bytes(CPU) == 6144 * 1024


def test_limit_of_the_container_counts_and_its_page_cache_does_not(system):
    limit(system, "4000", 3000, "anon 100\ninactive_file 500\n")
    assert available_bytes(CPU) == 4000 - (3000 - 500)
    limit(system, "4000", 3000, "anon 100\n")
    assert available_bytes(CPU) == 1000
    limit(system, str(10**12), 3000, "")
    assert available_bytes(CPU) == 6144 * 1024


def test_system_that_does_not_say_is_unknown(system):
    (system / "meminfo").write_text("MemTotal:       16384 kB\n")
    assert available_bytes(CPU) is None
    (system / "meminfo").unlink()
    assert available_bytes(CPU) is None
    assert available_bytes(torch.device("meta")) is None


def test_memory_of_a_gpu_that_torch_holds_and_does_not_use_is_available(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (700, 1000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 200)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 150)
    assert available_bytes(torch.device("cuda:1")) == 750


def test_memory_on_all_gpus_is_added(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 10**device)
    assert gpu_memory_bytes() == 111


def test_process_that_uses_no_gpu_has_taken_none_and_is_resident():
    assert memory_bytes() > 1e7
    if not torch.cuda.is_initialized():
        assert gpu_memory_bytes() == 0
