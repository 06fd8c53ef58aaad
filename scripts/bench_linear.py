"""Speed of linear layers in float32 on one core: torch's own (MKL) and oneDNN's, alone and in a forward pass.

python scripts/bench_linear.py

The sizes are those of SmolLM2-135M, with random weights, over the tokens of a window of 20 passages.
"""

import copy
from collections.abc import Callable
from functools import partial
from statistics import median

import torch
import typer
from bench.models import LlamaSize, llama
from bench.timing import ratios, time_in_turns
from torch import nn

from rerank.models.last_token import LastTokenReader
from rerank.models.onednn import compute_by_onednn, use_onednn

_TOKENS = 1440
_SIZES = ((576, 1536), (1536, 576), (576, 576))
_SMOLLM2 = LlamaSize(576, 1536, 30, 9, 3, 49_152)
_ROUNDS = 20


def main() -> None:
    """Print GFLOP/s of both, tokens per second of a forward pass with both, and their ratios."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    print("inputs x outputs | MKL, GFLOP/s | oneDNN, GFLOP/s | ratio")
    for inputs, outputs in _SIZES:
        linear, x = nn.Linear(inputs, outputs, bias=False), torch.randn(_TOKENS, inputs)
        by_onednn = copy.deepcopy(linear)
        compute_by_onednn(by_onednn)
        flop = 2 * _TOKENS * inputs * outputs
        _report(f"{inputs} x {outputs}", flop / 1e9, partial(linear, x), partial(by_onednn, x), _ROUNDS)
    print("model | MKL, tokens/s | oneDNN, tokens/s | ratio")
    model, window = llama(_SMOLLM2).eval(), [torch.randint(49_152, (_TOKENS,))]
    with_onednn = copy.deepcopy(model)
    use_onednn(with_onednn)
    mkl, onednn = (partial(LastTokenReader(each).read, window) for each in (model, with_onednn))
    _report("SmolLM2-135M", _TOKENS, mkl, onednn, _ROUNDS // 4)


def _report(name: str, work: float, mkl: Callable[[], object], onednn: Callable[[], object], rounds: int) -> None:
    """Prints the work per second of CPU time."""
    mkl_s, onednn_s = time_in_turns({"MKL": mkl, "oneDNN": onednn}, rounds).values()
    ratio = median(ratios(mkl_s, onednn_s))
    print(f"{name} | {work / median(mkl_s):.0f} | {work / median(onednn_s):.0f} | {ratio:.2f}")


if __name__ == "__main__":
    with torch.no_grad():
        typer.run(main)
