"""Counts the shapes of a workload and the kernels of a layer, which decide the speed on a GPU, without a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch._inductor import config as inductor
from torch.profiler import ProfilerActivity, profile

from rerank.models.batches import gpu_length
from rerank.models.compiled_layers import PlaceholderCache, compile_layers
from rerank.types import Window
from scripts.bench.models import TINY, llama
from scripts.bench.workload import DEPTH, PASSAGES, Values, Workload

_CONTEXT_TOKENS = 8192
#: Operators that allocate, or look at a tensor in another form; they launch nothing.
_NO_WORK = {
    "aten::" + name
    for name in (
        *("alias", "as_strided", "broadcast_tensors", "contiguous", "detach", "detach_", "empty", "empty_like"),
        *("empty_strided", "expand", "lift_fresh", "narrow", "permute", "reshape", "resize_", "resolve_conj"),
        *("resolve_neg", "result_type", "select", "slice", "split", "squeeze", "t", "to", "transpose", "unbind"),
        *("unsqueeze", "view", "_reshape_alias", "_to_copy", "_unsafe_view"),
    )
}


def measure_shapes(workload: Workload) -> Values:
    """Lengths of FIRST's windows, as they are and as a GPU pads them, and the tokens that padding adds."""
    lengths = [len(workload.first.encode(window).prompts[0]) for window in _windows(workload)]
    padded = [gpu_length(length, _CONTEXT_TOKENS) for length in lengths]
    return {
        "windows": [float(len(lengths))],
        "lengths of windows": [float(len(set(lengths)))],
        "lengths of windows on a GPU": [float(len(set(padded)))],
        "more tokens by padding, %": [100 * (sum(padded) / sum(lengths) - 1)],
    }


def measure_kernels(_: Workload) -> Values:
    """Kernels of a decoder layer in a pass over one window: as transformers runs it, and compiled as on a GPU."""
    cache = PlaceholderCache()
    torch._dynamo.reset()  # what was compiled before in this process
    counts: dict[str, list[int]] = {"eager": [], "compiled": []}
    for layers in (1, 3):
        model, ids = llama(replace(TINY, layers=layers)), torch.randint(TINY.vocabulary, (1, 64))

        def read(model: Any = model, ids: torch.Tensor = ids, **options: object) -> None:
            with torch.inference_mode():
                model(input_ids=ids, use_cache=False, **options)

        def read_compiled(read: Callable[..., None] = read) -> None:
            read(past_key_values=cache)

        counts["eager"].append(kernels(read))
        with inductor.patch({"cpp.enable_kernel_profile": True}):
            compile_layers(model, read_compiled)
            counts["compiled"].append(kernels(read_compiled))
    return {f"kernels a layer, {way}": [(three - one) / 2] for way, (one, three) in counts.items()}


def kernels(run: Callable[[], object]) -> int:
    """The number of operators that compute something, which are kernels on a GPU; a fused one counts once."""
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        run()
    return _working(event for event in profiled.events() or () if event.cpu_parent is None)


def _working(events: Iterable[Any]) -> int:
    """Operators that work, without those that only call others of them."""
    return sum(_working(event.cpu_children) or _does_work(event.name) for event in events)


def _does_work(name: str) -> bool:
    return (name.startswith("aten::") and name not in _NO_WORK) or "_fused_" in name


def _windows(workload: Workload) -> Iterator[Window]:
    """Windows that slide over the lists by half."""
    for item in workload.lists:
        whole = workload.window(item, DEPTH)
        for start in range(0, max(1, len(whole.passages) - PASSAGES + 1), PASSAGES // 2):
            yield replace(whole, passages=whole.passages[start : start + PASSAGES])
