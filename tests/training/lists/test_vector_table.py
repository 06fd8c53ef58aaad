"""Vectors of a training's texts: those of the encoder, each text once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rerank_training.lists.vector_table import VectorTable
from rich.console import Console

from rerank.models.encoder import Encoder
from rerank.types import Matrix


def test_equal_texts_are_encoded_once(encoder: Encoder) -> None:
    encoded: list[str] = []

    def encode(texts: Sequence[str]) -> Matrix:
        encoded.extend(texts)
        return encoder.encode_passages(texts)

    table = VectorTable(encode, ["a", "b", "a"], Console(quiet=True))
    np.testing.assert_allclose(table(["b", "a"]), encoder.encode_passages(["b", "a"]), atol=1e-6)
    assert encoded == ["a", "b"]
