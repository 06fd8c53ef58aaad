"""Precision of a model: what `auto` chooses, what is refused, and what the layers then compute in."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from rerank.models.last_token import LastTokenReader
from rerank.models.precision import compute_in, has_bfloat16, pick_precision
from tests.random_models import DECODERS, random_model, random_sequences

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
needs_bfloat16 = pytest.mark.skipif(not has_bfloat16(), reason="the processor has no AVX512_BF16")


def llama(width: int, device: str = "cpu") -> LlamaForCausalLM:
    """Without layers, which the choice does not read; `meta` is a device that is not a CPU."""
    with torch.device(device):
        return LlamaForCausalLM(LlamaConfig(hidden_size=width, num_hidden_layers=0, vocab_size=2))


@pytest.mark.parametrize(
    ("width", "available", "chosen"),
    [(448, True, "float32"), (512, True, "bfloat16"), (4096, True, "bfloat16"), (4096, False, "float32")],
)
def test_auto_on_a_cpu_is_bfloat16_where_it_gains(monkeypatch, width, available, chosen):
    monkeypatch.setattr("rerank.models.precision.has_bfloat16", lambda: available)
    assert pick_precision(llama(width), "auto") == chosen
    assert pick_precision(llama(width), "float32") == "float32"
    assert pick_precision(llama(width), "bfloat16") == "bfloat16"


@needs_bfloat16
def test_bfloat16_gives_what_autocast_gives_with_weights_rounded_once():
    rounded, plain = (random_model(DECODERS["qwen2"]) for _ in range(2))  # its layers have biases
    compute_in(rounded, "bfloat16")
    logits, expected = (LastTokenReader(model, autocast=True).read(random_sequences()) for model in (rounded, plain))
    torch.testing.assert_close(logits, expected, atol=0.02 * expected.std().item(), rtol=0)
