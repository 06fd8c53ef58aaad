"""Memory of a device: checks whether a model fits, limits the size of batches, and translates out-of-memory errors."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from rerank.checkpoints.settings_files import read_settings
from rerank.errors import CheckpointError
from rerank.util.memory import available_bytes

log = logging.getLogger(__name__)

#: Number of tokens in a window of 20 passages. A device must have memory to read one.
_WINDOW_TOKENS = 2048
#: Largest share of the free memory for batches. CUDA graphs of the passes take about the same memory once more.
_BATCH_SHARE = 0.4
#: The name of torch's allocator on a CPU in the RuntimeError of a failed allocation.
_CPU_ALLOCATOR = "DefaultCPUAllocator"


def check_fits(folder: Path, device: torch.device, dtype: torch.dtype) -> None:
    """Checks that the free memory of a device is enough for a model's weights and for a window of 20 passages.

    Args:
        folder: the model's folder, with its config.json.
        dtype: number format of the weights on the device.

    Raises:
        CheckpointError: the free memory is not enough.
    """
    free = available_bytes(device)
    files = sorted(folder.glob("model*.safetensors")) or sorted(folder.glob("pytorch_model*.bin"))
    weights = sum(map(_parameters, files)) * dtype.itemsize
    window = _bytes_of_a_window(folder, dtype)
    if free is None or weights + window <= free:
        return
    name = str(dtype).removeprefix("torch.")
    others = "set precision: bfloat16, " if device.type == "cuda" and dtype == torch.float32 else ""
    raise CheckpointError(
        f"{folder} needs some {_gb(weights + window)} GB, {_gb(weights)} of them for weights in {name} and "
        f"{_gb(window)} to read a window of {_WINDOW_TOKENS} tokens, and {_gb(free)} GB of the memory of {device} are "
        f"free; {others}take a smaller model, or another device"
    )


def fitting_tokens(read: Callable[[], object], tokens: int, device: torch.device, most: int) -> int:
    """Returns the largest number of tokens of a batch that fits into the free memory, by measuring one pass.

    Args:
        read: function that runs a pass of the loaded model over `tokens` tokens.
        device: device of the model; on a CPU, the result is `most`.
        most: upper limit of the result; larger batches are not faster.
    """
    if device.type != "cuda":
        return most
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    read()
    taken, free = torch.cuda.max_memory_allocated(device) - before, available_bytes(device) or 0
    fitting = int(_BATCH_SHARE * free * tokens / max(1, taken))
    if fitting >= most:
        return most
    fitting = max(1, fitting)
    log.warning(
        "batches hold %d tokens instead of %d: a pass over %d takes %s GB, and %s GB of the memory of %s are free",
        *(fitting, most, tokens, _gb(taken), _gb(free), device),
    )
    return fitting


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


def keep_in_memory(model: nn.Module) -> None:
    """Copies weights on a CPU into memory, because libraries leave them memory-mapped.

    If a mapped file is truncated, the process ends (SIGBUS); if it is overwritten, the model changes.
    """
    for tensor in chain(model.parameters(), model.buffers()):
        if tensor.device.type == "cpu":
            tensor.data = tensor.data.clone()


def _parameters(path: Path) -> int:
    """A lower bound on the number of weights in a file; 0 for a damaged file, which the loader reports."""
    if path.suffix != ".safetensors":
        return path.stat().st_size // torch.float32.itemsize
    try:
        with safe_open(path, framework="pt") as file:
            return sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118
    except (SafetensorError, OSError):
        return 0


def _bytes_of_a_window(folder: Path, dtype: torch.dtype) -> int:
    """Bytes that one layer needs for a window: three states of the MLP's width, and eight of the model's width."""
    settings = read_settings(folder / "config.json")
    settings = settings.get("text_config") or settings
    width = _number(settings.get("hidden_size"))
    return _WINDOW_TOKENS * (3 * _number(settings.get("intermediate_size"), 4 * width) + 8 * width) * dtype.itemsize


def _number(setting: object, default: int = 0) -> int:
    return setting if isinstance(setting, int) else default


def _gb(count: int) -> str:
    return f"{count / 1e9:.2f}" if count < 1e10 else f"{count / 1e9:.0f}"
