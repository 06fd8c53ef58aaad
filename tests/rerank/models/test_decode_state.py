"""Decode steps after a prefill give what a forward pass over the full sequences gives."""

from __future__ import annotations

import pytest
import torch

from rerank.models.packing_check import make_last_token_reader
from tests.random_models import NOT_PACKABLE, PACKABLE, last_logits, random_model, random_sequences

#: Two architectures that are decoded one sequence at a time stand for all of NOT_PACKABLE.
CONFIGS = PACKABLE | {name: NOT_PACKABLE[name][0] for name in ("falcon", "llama with dynamic positions")}


@pytest.mark.parametrize("name", CONFIGS)
def test_decode_steps_give_what_reading_the_full_sequences_gives(name: str) -> None:
    """Sequences of different lengths, and two of the same; some outgrow the sliding window on the way."""
    steps = 4
    reader, untouched = make_last_token_reader(random_model(CONFIGS[name])), random_model(CONFIGS[name])
    embeddings = untouched.get_input_embeddings()
    full = [torch.cat([ids, torch.arange(steps)]) for ids in [*random_sequences(), random_sequences()[0].flip(0)]]
    prefixes = [[ids[: len(ids) - steps + step] for ids in full] for step in range(steps + 1)]
    state = reader.prefill([embeddings(ids) for ids in prefixes[0]])
    for step in range(steps):
        torch.testing.assert_close(state.outputs, last_logits(untouched, prefixes[step]), atol=3e-5, rtol=0)
        state.decode_step(torch.stack([embeddings(ids[-1]) for ids in prefixes[step + 1]]))
    torch.testing.assert_close(state.outputs, last_logits(untouched, full), atol=3e-5, rtol=0)
