"""Decode steps: the outputs of whole sequences, in the cache of a GPU too, whose steps read nothing back."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import StaticCache

from rerank.models import decode_state
from rerank.models.decode_state import DecodeState
from tests.random_models import DECODERS, last_logits, random_model, random_sequences

#: Operators that give Python a number from the device. A CUDA graph cannot contain them.
READ_BACK = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default}


class _Operators(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: set[object] = set()

    def __torch_dispatch__(self, operator: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.add(operator)
        return operator(*args, **(kwargs or {}))


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
def test_steps_give_the_outputs_of_whole_sequences(name: str) -> None:
    check_steps(name)


@pytest.mark.usefixtures("static")
@pytest.mark.parametrize("name", ["llama", "mistral", "qwen2 with a window in one layer", "qwen3", "gemma3"])
def test_steps_in_the_cache_of_a_gpu_give_the_outputs_of_whole_sequences(name: str) -> None:
    check_steps(name)


@pytest.mark.usefixtures("static")
@pytest.mark.parametrize("name", ["llama", "mistral", "qwen2", "qwen3"])
def test_step_in_the_cache_of_a_gpu_can_be_captured(name: str) -> None:
    model = random_model(DECODERS[name])
    with torch.inference_mode():
        state = DecodeState(model, model.config, random_sequences()[:1], steps=2)
        with _Operators() as operators:
            state.decode_step(torch.tensor([7]))
    assert operators.seen
    assert operators.seen.isdisjoint(READ_BACK)
