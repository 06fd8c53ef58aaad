"""Speeds up passes on a GPU: compiled layers fuse operations between matrix products; CUDA graphs launch them at once.

For small models, launching kernels one by one from Python takes longer than the kernels.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple

import torch
from transformers import DynamicCache, PreTrainedModel
from transformers.utils.import_utils import is_cuda_stream_capturing

log = logging.getLogger(__name__)

#: torch compiles at most this many versions of a function. All models of a type share the function of their
#: layers, and each needs two versions: for one sequence, and for several.
_MOST_VERSIONS = 64


def set_up_compiler() -> None:
    """Configures torch's compiler for compiled layers, in the whole process.

    Numbers such as the epsilon of a norm become constants. By default a function with dynamic shapes gets them as
    tensors on the CPU, and torch builds C++ for these, which took more than 40 s on a machine with an H100.
    """
    torch._dynamo.config.specialize_float = True
    torch._dynamo.config.recompile_limit = max(_MOST_VERSIONS, torch._dynamo.config.recompile_limit)


def set_up_gpu(device: torch.device) -> None:
    """Starts torch's compiler on a GPU in the background, which takes some eight seconds once in a process.

    cuDNN's attention is switched off, because it plans 38 ms for every new shape; `LastTokenReader` uses it for the few
    shapes that it warms up.
    """
    if device.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)
        _start_compiler(device)


@cache
def _start_compiler(device: torch.device) -> None:
    def compile_something() -> None:
        with suppress(Exception):  # the layers of a model meet the same failure, and say so
            torch.compile(torch.sin, dynamic=True)(torch.ones(8, device=device))

    threading.Thread(target=compile_something, name="start the compiler", daemon=True).start()


class PlaceholderCache(DynamicCache):
    """An empty cache that is passed to a model with compiled layers, but not to the layers.

    Without a cache, transformers asks the GPU at each pass whether a row holds several texts, and waits for the
    answer; a CUDA graph cannot contain that.
    """


def compile_layers(model: PreTrainedModel, warm_up: Callable[[], object]) -> bool:
    """Compiles the decoder layers of a model, which share one compiled function. Returns False if it has no such layer.

    A call with a cache of keys and values runs uncompiled: the cache depends on the number of the layer, so that each
    layer would need a compiled function of its own.

    Args:
        warm_up: function that reads one sequence and then several with the model, so that the compiler runs now. If it
            fails, the layers run uncompiled, and the log says why.
    """
    set_up_compiler()
    layers = [_CompilableLayer(layer) for layer in getattr(model.base_model, "layers", ())]
    start_s = time.monotonic()
    try:
        warm_up()
    except Exception as error:
        for layer in layers:
            layer.compiled = layer.eager
        log.warning("the layers of %s could not be compiled, and run slower: %r", type(model).__name__, error)
    else:
        log.info(
            "compiled the %d layers of %s in %.1f s", len(layers), type(model).__name__, time.monotonic() - start_s
        )
    return bool(layers)


class _CompilableLayer:
    """The `forward` of a layer, compiled for calls without a cache of keys and values."""

    def __init__(self, layer: Any) -> None:
        self.eager: Callable[..., Any] = layer.forward
        self.compiled: Callable[..., Any] = torch.compile(self.eager, dynamic=True)
        self._needs_mask = True
        layer.forward = self._forward

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        if isinstance(kwargs.get("past_key_values"), PlaceholderCache):
            kwargs["past_key_values"] = None
            if not is_cuda_stream_capturing():
                self._needs_mask = kwargs.get("attention_mask") is not None
            elif not self._needs_mask:  # transformers 5.17 makes one for every capture, and the call before had none
                kwargs["attention_mask"] = None
        forward = self.eager if kwargs.get("past_key_values") is not None else self.compiled
        return forward(*args, **kwargs)


class _Captured(NamedTuple):
    """A graph with its input and its outputs, whose memory each replay overwrites."""

    graph: torch.cuda.CUDAGraph
    inputs: torch.Tensor
    outputs: torch.Tensor


class CudaGraphs:
    """Calls a function of a tensor on a GPU, and replays its kernels when a shape comes again.

    A call with a new shape runs the function, and captures its kernels for the next one. If they cannot be captured,
    all calls run the function, and the log says why.

    Args:
        function: must run on the GPU only: it copies no tensor to the CPU, and tensors that it keeps stay in place.
    """

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._function = function
        self._captured: dict[torch.Size, _Captured] = {}
        self._can_capture = True
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        """Returns the function's outputs, which the next call overwrites."""
        if captured := self._captured.get(inputs.shape):
            captured.inputs.copy_(inputs)
            captured.graph.replay()
            return captured.outputs
        if not self._can_capture:
            return self._function(inputs)
        stream, here = _stream(inputs.device), torch.cuda.current_stream(inputs.device)
        stream.wait_stream(here)
        with torch.cuda.stream(stream):  # this call also makes what cuBLAS keeps for the stream, outside of the graph
            inputs = inputs.clone()
            outputs = self._function(inputs)
            self._capture(inputs)
        here.wait_stream(stream)
        return outputs

    def _capture(self, inputs: torch.Tensor) -> None:
        graph = torch.cuda.CUDAGraph()
        try:
            # Other threads may allocate memory meanwhile: `torch.cuda.graph` would collect garbage, and forbid it.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                outputs = self._function(inputs)
            finally:
                graph.capture_end()
        except Exception as error:
            self._can_capture = False
            log.warning("kernels for inputs of shape %s are launched one by one: %r", tuple(inputs.shape), error)
            return
        self._captured[inputs.shape] = _Captured(graph, inputs, outputs)


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """Returns the stream for captures on a device; cuBLAS keeps memory for every stream that it sees."""
    return torch.cuda.Stream(device)
