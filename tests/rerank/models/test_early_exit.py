"""Early exit: the outputs are those of a slow pass over all layers, projected, and what cannot exit is refused."""

from __future__ import annotations

import pytest
import torch

from rerank.errors import CheckpointError
from rerank.models.early_exit import exit_after
from rerank.models.packing_check import make_last_token_reader
from tests.random_models import NOT_PACKABLE, PACKABLE, random_model, random_sequences

#: Some positions of each of the sequences, the first and the last ones among them.
POSITIONS = [[0, 5, 36], [11], [2, 3, 4], [0], [63, 1]]


@torch.inference_mode()
def test_model_that_cannot_be_packed_is_read_one_by_one() -> None:
    model, sequences = random_model(PACKABLE["llama"]), random_sequences()
    exit_after(model, 2)
    packed = make_last_token_reader(model).read_at(sequences, POSITIONS)
    model = random_model(NOT_PACKABLE["llama with dynamic positions"][0])
    exit_after(model, 2)
    reader = make_last_token_reader(model)
    assert reader.batching == "one_by_one"
    torch.testing.assert_close(reader.read_at(sequences, POSITIONS), packed, atol=1e-5, rtol=1e-4)


def test_model_of_another_type_is_refused() -> None:
    with pytest.raises(
        CheckpointError, match="llama, mistral, qwen2, qwen3, and this one is gpt2; leave early_exit out"
    ):
        exit_after(random_model(PACKABLE["gpt2"]), 1)
