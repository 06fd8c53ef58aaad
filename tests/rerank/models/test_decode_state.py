"""Decode steps: the outputs of whole sequences, in the cache of a GPU too, whose steps read nothing back."""

import pytest
import torch
from transformers import StaticCache

from rerank.models import decode_state
from rerank.models.decode_state import DecodeState
from tests.random_models import DECODERS, READ_BACK, Operators, last_logits, random_model, random_sequences


@pytest.fixture
def static(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache of a GPU, with room that no step fills."""
    monkeypatch.setattr(
        decode_state, "_cache", lambda config, tokens, _: StaticCache(config=config, max_cache_len=tokens + 5)
    )


def check_steps(name: str) -> None:
    model, sequences = random_model(DECODERS[name]), random_sequences()
    steps = [torch.tensor([(3 * row + step) % 50 for row in range(len(sequences))]) for step in range(3)]
    with torch.inference_mode():
        state = DecodeState(model, model.config, sequences, steps=3)
        for ids in steps:
            torch.testing.assert_close(state.outputs, last_logits(model, sequences), atol=1e-4, rtol=1e-4)
            state.decode_step(ids)
            sequences = [torch.cat([row, one[None]]) for row, one in zip(sequences, ids, strict=True)]
        torch.testing.assert_close(state.outputs, last_logits(model, sequences), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["llama", "qwen2 with a window in one layer", "gpt2"])
def test_steps_give_the_outputs_of_whole_sequences(name):
    check_steps(name)


@pytest.mark.usefixtures("static")
@pytest.mark.parametrize("name", ["llama", "mistral", "qwen2 with a window in one layer", "qwen3", "gemma3"])
def test_steps_in_the_cache_of_a_gpu_give_the_outputs_of_whole_sequences(name):
    check_steps(name)


@pytest.mark.usefixtures("static")
@pytest.mark.parametrize("name", ["llama", "mistral", "qwen2", "qwen3"])
def test_step_in_the_cache_of_a_gpu_can_be_captured(name):
    model = random_model(DECODERS[name])
    with torch.inference_mode():
        state = DecodeState(model, model.config, random_sequences()[:1], steps=2)
        with Operators() as operators:
            state.decode_step(torch.tensor([7]))
    assert operators.seen
    assert operators.seen.isdisjoint(READ_BACK)
