"""Compiles the decoder layers of a model, which fuses the work between their matrix products."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel
from transformers.utils.import_utils import is_cuda_stream_capturing

log = logging.getLogger(__name__)

#: torch gives up compiling a function after this many versions. All models of a type share the function of their
#: layers, and each needs two versions: for one sequence, and for several.
_MOST_VERSIONS = 64


def set_up_compiler() -> None:
    """Sets what compiled layers need of torch's compiler, for the whole process.

    Floats such as the epsilon of a norm become constants. By default a function with dynamic shapes gets them as
    tensors on the CPU, and torch builds C++ for them, which took more than 40 s on a machine with an H100.
    """
    torch._dynamo.config.specialize_float = True
    torch._dynamo.config.recompile_limit = max(_MOST_VERSIONS, torch._dynamo.config.recompile_limit)


def set_up_gpu(device: torch.device) -> None:
    """Lets torch start what its compiler needs on a GPU, in the background: some eight seconds, once in a process.

    cuDNN's attention plans 38 ms for every new shape, so it is off but for shapes that `LastTokenReader` warms up.
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


class UnreadCache(DynamicCache):
    """An empty cache that is given to a model with compiled layers, and not to the layers.

    Without a cache, transformers asks the GPU at each pass whether a row holds several texts, and waits for the
    answer; a CUDA graph cannot contain that.
    """


def compile_layers(model: PreTrainedModel, warm_up: Callable[[], object]) -> bool:
    """Compiles the decoder layers of a model, which share one compiled function. Returns False if it has none.

    A layer that gets a cache of keys and values is not compiled: the cache knows the number of the layer, so that every
    layer would be compiled for itself.

    Args:
        warm_up: reads something of each kind with the model, so that the compiler runs now. If it fails there, the
            layers run without it, and the log says why.
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
        if isinstance(kwargs.get("past_key_values"), UnreadCache):
            kwargs["past_key_values"] = None
            if not is_cuda_stream_capturing():
                self._needs_mask = kwargs.get("attention_mask") is not None
            elif not self._needs_mask:  # transformers 5.17 makes one for every capture, and the call before had none
                kwargs["attention_mask"] = None
        forward = self.eager if kwargs.get("past_key_values") is not None else self.compiled
        return forward(*args, **kwargs)
