"""Linear layers in int8: what a slow integer reference gives, near float32, and no row changes another."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn
from transformers import LlamaForCausalLM

from rerank.models.int8 import compute_in_int8, quantize_rows, quantize_weight, use_int8
from rerank.models.onednn import linears_of_layers
from rerank.models.packing_check import make_last_token_reader
from rerank.models.precision import has_vnni
from tests.random_models import PACKABLE, last_logits, random_model, random_sequences

CONFIG = PACKABLE["llama"]
needs_vnni = pytest.mark.skipif(not has_vnni(), reason="the processor has no AVX512_VNNI")


def slow_linear(linear: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    """(T, K) → (T, N): each product of integers alone, as the definition says."""
    weight_scales = [max(map(abs, row)) / 127 for row in linear.weight.tolist()]
    weights = [[round(w / s) for w in row] for row, s in zip(linear.weight.tolist(), weight_scales, strict=True)]
    outputs = []
    for values in x.tolist():
        scale = max(map(abs, values)) / 127 or 1.0
        integers = [round(value / scale) for value in values]
        sums = [sum(a * b for a, b in zip(integers, row, strict=True)) for row in weights]
        outputs.append([total * s * scale for total, s in zip(sums, weight_scales, strict=True)])
    bias = 0.0 if linear.bias is None else linear.bias
    return torch.tensor(outputs) + bias


@needs_vnni
@pytest.mark.parametrize("shape", [(1, 8, 4), (5, 24, 7), (33, 70, 19)], ids=str)
@pytest.mark.parametrize("bias", [True, False])
@torch.inference_mode()
def test_layer_is_that_of_the_slow_reference(shape: tuple[int, int, int], bias: bool) -> None:
    torch.manual_seed(1)
    rows, inputs, outputs = shape
    linear, x = nn.Linear(inputs, outputs, bias=bias), torch.randn(rows, inputs)
    expected = slow_linear(linear, x)
    compute_in_int8(linear)
    torch.testing.assert_close(linear(x), expected, atol=1e-6, rtol=1e-5)


@needs_vnni
@torch.inference_mode()
def test_sums_of_the_largest_integers_are_exact() -> None:
    linear, x = nn.Linear(3072, 2, bias=False), torch.full((3, 3072), -127.0)
    linear.weight[0], linear.weight[1] = 127, -127
    compute_in_int8(linear)
    assert linear(x).tolist() == [[-127.0 * 127 * 3072, 127.0 * 127 * 3072]] * 3


@needs_vnni
@pytest.mark.parametrize("leading", [(), (6,), (2, 3), (0,)], ids=str)
@torch.inference_mode()
def test_error_against_float32_is_bounded_by_the_rounding(leading: tuple[int, ...]) -> None:
    torch.manual_seed(2)
    linear, x = nn.Linear(64, 48), torch.randn(*leading, 64)
    expected, weight = linear(x), linear.weight.clone()
    compute_in_int8(linear)
    largest_x, largest_w = x.abs().amax(-1, keepdim=True) if x.numel() else x[..., :1], weight.abs().amax(1)
    half_x, half_w = largest_x / 254, largest_w / 254  # each factor is at most half a step off
    bound = half_x * weight.abs().sum(1) + half_w * x.abs().sum(-1, keepdim=True) + 64 * half_x * half_w + 1e-5
    assert linear(x).shape == expected.shape
    assert ((linear(x) - expected).abs() <= bound).all()


@needs_vnni
@torch.inference_mode()
def test_result_of_a_row_does_not_depend_on_the_rows_beside_it() -> None:
    torch.manual_seed(3)
    linear, x = nn.Linear(64, 48), torch.randn(40, 64)
    x[7] *= 1e4  # one scale for all rows would round the others to nothing
    compute_in_int8(linear)
    together = linear(x)
    assert all(torch.equal(linear(row[None])[0], together[place]) for place, row in enumerate(x))


@needs_vnni
@torch.inference_mode()
def test_zero_rows_and_zero_channels_give_zero() -> None:
    linear, x = nn.Linear(16, 4, bias=False), torch.randn(3, 16)
    linear.weight[2], x[1] = 0, 0
    compute_in_int8(linear)
    y = linear(x)
    assert torch.isfinite(y).all()
    assert not y[1].any()
    assert not y[:, 2].any()


@needs_vnni
@torch.inference_mode()
def test_numbers_that_are_not_finite_stay_visible() -> None:
    linear = nn.Linear(16, 4)
    compute_in_int8(linear)
    x = torch.ones(3, 16)
    x[0, 3], x[1, 3] = torch.inf, torch.nan
    finite = torch.isfinite(linear(x)).all(1)
    assert finite.tolist() == [False, False, True]


def test_rounding_is_symmetric() -> None:
    x = torch.tensor([[1.0, -1.0, 0.0, 0.5], [-3.0, 0.1, 0.0, 3.0]])
    rows, scales = quantize_rows(x)
    assert rows.tolist() == [[255, 1, 128, 192], [1, 132, 128, 255]]
    torch.testing.assert_close(scales.flatten(), torch.tensor([1 / 127, 3 / 127]))
    weight, weight_scales = quantize_weight(x)
    assert torch.equal(weight.short(), rows.short() - 128)
    assert torch.equal(weight_scales, scales.flatten())


@needs_vnni
def test_layers_of_attention_and_mlp_are_changed_and_the_head_is_not() -> None:
    model = LlamaForCausalLM(CONFIG)
    use_int8(model)
    changed = [m for m in model.modules() if isinstance(m, nn.Linear) and m.weight.dtype == torch.int8]
    assert len(changed) == 7 * CONFIG.num_hidden_layers
    assert model.lm_head.weight.dtype == torch.float32


def rounded_linear(linear: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    """What int8 gives by definition, from the rounded numbers as float32."""
    step_x = x.abs().amax(-1, keepdim=True) / 127
    step_w = linear.weight.abs().amax(1, keepdim=True) / 127
    return nn.functional.linear((x / step_x).round() * step_x, (linear.weight / step_w).round() * step_w, linear.bias)


@needs_vnni
@pytest.mark.parametrize(("bfloat16", "allowed"), [(False, 0.05), (True, 0.15)])
def test_packed_reader_gives_the_logits_of_rounded_numbers(
    monkeypatch: pytest.MonkeyPatch, bfloat16: bool, allowed: float
) -> None:
    """Differences in the last bit move a few numbers by a step; bfloat16 beside the linear layers moves more.

    With other sequences the error was .000 to .003, and .038 to .056 with bfloat16.
    """
    monkeypatch.setattr("rerank.models.precision.has_bfloat16", lambda: bfloat16)
    model = random_model(CONFIG)
    for linear in linears_of_layers(model):
        linear.forward = partial(rounded_linear, linear)
    expected = last_logits(model, random_sequences())
    reader = make_last_token_reader(random_model(CONFIG), "int8")
    logits = reader.read(random_sequences())
    assert (reader.batching, reader.autocast, logits.dtype) == ("packed", bfloat16, torch.float32)
    assert relative_error(logits, expected) < allowed


@needs_vnni
def test_logits_are_near_those_of_float32() -> None:
    """Each of 21 layers rounds both factors by .006 of their deviation; with other sequences the sum was .05 to .09."""
    expected = last_logits(random_model(CONFIG), random_sequences())
    logits = make_last_token_reader(random_model(CONFIG), "int8").read(random_sequences())
    assert 0.001 < relative_error(logits, expected) < 0.15


def relative_error(logits: torch.Tensor, expected: torch.Tensor) -> float:
    """The root of the mean square of the differences, in standard deviations."""
    return ((logits - expected).square().mean() / expected.var()).sqrt().item()
