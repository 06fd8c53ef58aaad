"""Speed of a linear layer in float32 on one core: torch's (MKL) and oneDNN's with packed weights.

python scripts/bench_linear.py

The sizes are those of the layers of SmolLM2-135M, over the tokens of a window of 20 passages.
"""

import time
from collections.abc import Callable
from functools import partial
from statistics import median

import torch
import typer
from torch.nn import functional

_TOKENS = 1440
_SIZES = ((576, 1536), (1536, 576), (576, 576))
_ROUNDS = 20


def main() -> None:
    """Print GFLOP/s of both, and their ratio."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    print("inputs x outputs | MKL, GFLOP/s | oneDNN, GFLOP/s | ratio")
    for inputs, outputs in _SIZES:
        x, weight = torch.randn(_TOKENS, inputs), torch.randn(outputs, inputs)
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, _TOKENS)
        flop = 2 * _TOKENS * inputs * outputs
        mkl = flop / _seconds(partial(functional.linear, x, weight)) / 1e9
        onednn = flop / _seconds(partial(_linear, x, packed)) / 1e9
        print(f"{inputs} x {outputs} | {mkl:.0f} | {onednn:.0f} | {onednn / mkl:.2f}")


def _linear(x: torch.Tensor, packed: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")
    return result


def _seconds(work: Callable[[], torch.Tensor]) -> float:
    """Median CPU time of the work, after one round of warming up."""
    work()
    times = []
    for _ in range(_ROUNDS):
        start_s = time.process_time()
        work()
        times.append(time.process_time() - start_s)
    return median(times)


if __name__ == "__main__":
    with torch.no_grad():
        typer.run(main)
