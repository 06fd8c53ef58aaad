"""Attention in blocks gives what torch's kernel gives in float32, up to the rounding of bfloat16."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from rerank.models.bfloat16_attention import attend_in_blocks, use_block_attention
from tests.random_models import DECODERS, last_logits, random_model, random_sequences


@pytest.mark.parametrize("length", [1, 2, 127, 128, 129, 300])
@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (3, 1)], ids=str)
def test_result_is_that_of_torch_in_float32(length: int, heads: tuple[int, int]) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, number, length, 16) for number in (heads[0], heads[1], heads[1]))
    expected = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    attended = attend_in_blocks(q, k, v, None)
    assert (attended.shape, attended.dtype) == (expected.shape, torch.bfloat16)
    torch.testing.assert_close(attended.float(), expected, atol=0.03, rtol=0.02)


@pytest.mark.parametrize(
    ("name", "is_used"), [("qwen2", True), ("mistral", True), ("gpt-oss", False), ("falcon", False)]
)
def test_models_with_torch_s_attention_use_it_and_give_the_same_logits(name: str, is_used: bool) -> None:
    """Sequences that are longer than Mistral's window keep the mask that transformers makes."""
    model, ids = random_model(DECODERS[name]), random_sequences()
    expected = last_logits(model, ids)
    before = model.config._attn_implementation
    use_block_attention(model)
    assert (model.config._attn_implementation != before) is is_used
    with torch.autocast("cpu", torch.bfloat16):
        logits = last_logits(model, ids)
    torch.testing.assert_close(logits, expected, atol=0.1 * expected.std().item(), rtol=0)
