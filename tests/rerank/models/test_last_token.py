"""Reading last tokens: packed attention against the formula, the identifier head, and out-of-memory errors."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from rerank.models.identifier_head import IdentifierHead
from rerank.models.out_of_memory import translate_out_of_memory
from rerank.models.packed_attention import Pack, packed_attention
from rerank.models.packing_check import make_last_token_reader
from tests.random_models import LENGTHS, PACKABLE, random_model, random_sequences

CPU = torch.device("cpu")
PACK_LENGTHS = (5, 1, 12, 3)
TOTAL = sum(PACK_LENGTHS)
#: Scores of a few units, so that attention is far from uniform.
SPREAD = 3.0


def heads(n: int, seed: int) -> torch.Tensor:
    """(1, n, TOTAL, 8) random queries, keys or values."""
    return SPREAD * torch.randn(1, n, TOTAL, 8, generator=torch.Generator().manual_seed(seed))


def by_formula(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    window: int | None = None,
) -> torch.Tensor:
    """(1, T, H, D), position by position in float64."""
    groups = query.shape[1] // key.shape[1]
    attended = torch.zeros(1, TOTAL, query.shape[1], 8, dtype=torch.float64)
    for start, end in itertools.pairwise([0, *itertools.accumulate(PACK_LENGTHS)]):
        for position in range(start, end):
            first = start if window is None else max(start, position - window + 1)
            for head in range(query.shape[1]):
                keys, values = (t[0, head // groups, first : position + 1].double() for t in (key, value))
                scores = keys @ query[0, head, position].double() / math.sqrt(8)
                attended[0, position, head] = scores.softmax(0) @ values
    return attended


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("window", [None, 1, 4, 100])
def test_packed_attention_is_the_formula(kv_heads: int, window: int | None) -> None:
    query, key, value = heads(4, 0), heads(kv_heads, 1), heads(kv_heads, 2)
    pack = Pack(PACK_LENGTHS, CPU)
    options = {"scaling": 8**-0.5, "sliding_window": window, "pack": pack}
    expected = by_formula(query, key, value, window)
    attended, weights = packed_attention(torch.nn.Module(), query, key, value, None, **options)
    assert weights is None
    torch.testing.assert_close(attended.double(), expected, atol=1e-5, rtol=0)
    last, _ = packed_attention(torch.nn.Module(), query, key, value, None, last_only=True, **options)
    torch.testing.assert_close(last[:, pack.outputs_at].double(), expected[:, pack.outputs_at], atol=1e-5, rtol=0)


class PositionCounter(torch.nn.Module):
    """Counts the positions that a module is applied to."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module, self.positions = module, 0

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        self.positions += hidden.shape[:-1].numel()
        return self.module(hidden)


def test_mlp_of_the_last_layer_is_applied_to_the_last_positions_only() -> None:
    model = random_model(PACKABLE["qwen3"])
    reader = make_last_token_reader(model)
    layers = model.base_model.layers
    for layer in (layers[0], layers[-1]):
        layer.mlp = PositionCounter(layer.mlp)
    reader.read(random_sequences())
    assert (layers[0].mlp.positions, layers[-1].mlp.positions) == (sum(LENGTHS), len(LENGTHS))


def test_identifier_head_computes_in_float32_inside_autocast_too() -> None:
    torch.manual_seed(0)
    head = torch.nn.Linear(64, 100)
    hidden = torch.randn(3, 64).bfloat16()
    rows = IdentifierHead(head.bfloat16(), [5, 7])
    expected = hidden.double() @ head.weight[[5, 7]].double().T + head.bias[[5, 7]].double()
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            logits = rows(hidden)
        assert logits.dtype == torch.float32
        torch.testing.assert_close(logits.double(), expected, atol=1e-5, rtol=0)


def test_out_of_memory_on_the_cpu_becomes_a_memory_error() -> None:
    @translate_out_of_memory()
    def allocate() -> None:
        torch.empty(2**50, dtype=torch.uint8)

    for _ in range(2):  # the decorated function can be called again
        with pytest.raises(MemoryError, match="DefaultCPUAllocator"):
            allocate()


@pytest.mark.gpu
def test_real_out_of_memory_on_the_gpu_becomes_a_memory_error() -> None:
    with pytest.raises(MemoryError), translate_out_of_memory():
        torch.empty(2**50, dtype=torch.uint8, device="cuda")
