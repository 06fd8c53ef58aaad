"""Attention in blocks gives what torch's kernel gives in float32, up to the rounding of bfloat16."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from rerank.models.bfloat16_attention import attend_in_blocks


@pytest.mark.parametrize("length", [1, 2, 127, 128, 129, 300])
@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (3, 1)], ids=str)
def test_result_is_that_of_torch_in_float32(length: int, heads: tuple[int, int]) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, number, length, 16) for number in (heads[0], heads[1], heads[1]))
    expected = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    attended = attend_in_blocks(q, k, v, None)
    assert (attended.shape, attended.dtype) == (expected.shape, torch.bfloat16)
    torch.testing.assert_close(attended.float(), expected, atol=0.03, rtol=0.02)
