"""CUDA graphs: small models take less time on a GPU than Python takes to launch their kernels one by one."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch

log = logging.getLogger(__name__)


class _Captured(NamedTuple):
    """A graph with its input and its outputs, whose memory every replay uses again."""

    graph: torch.cuda.CUDAGraph
    inputs: torch.Tensor
    outputs: torch.Tensor


class CudaGraphs:
    """Calls a function of a tensor on a GPU, and replays its kernels when a shape comes again.

    A call with a new shape runs the function, and captures its kernels for the next one. If they cannot be captured,
    all calls run the function, and the log says why.

    Args:
        function: works on the GPU alone: it reads no tensor from there, and what it keeps stays at its place in memory.
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
