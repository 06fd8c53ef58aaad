"""Early exit: the outputs are those of a slow pass over all layers, projected, and what cannot exit is refused."""

from __future__ import annotations

import pytest
import torch

from rerank.errors import CheckpointError
from rerank.models.early_exit import exit_after
from rerank.models.last_token import LastTokenReader
from tests.random_models import DECODERS, random_model, random_sequences

#: Some positions of each of the sequences, the first and the last ones among them.
POSITIONS = [[0, 5, 36], [11], [2, 3, 4], [0], [63, 1]]


@torch.inference_mode()
def test_sequences_read_together_give_the_outputs_of_each_alone() -> None:
    model, sequences = random_model(DECODERS["llama"]), random_sequences()
    exit_after(model, 2)
    reader = LastTokenReader(model)
    alone = [reader.read_at([ids], [some]) for ids, some in zip(sequences, POSITIONS, strict=True)]
    torch.testing.assert_close(reader.read_at(sequences, POSITIONS), torch.cat(alone), atol=1e-5, rtol=1e-4)


def test_model_of_another_type_is_refused() -> None:
    with pytest.raises(
        CheckpointError, match="llama, mistral, qwen2, qwen3, and this one is gpt2; leave early_exit out"
    ):
        exit_after(random_model(DECODERS["gpt2"]), 1)
