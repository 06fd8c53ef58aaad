"""Vectors of a training's texts: those of the encoder, each text once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rerank_training.lists.vector_table import VectorTable, texts_of
from rich.console import Console

from rerank.models.encoder import Encoder
from rerank.types import Matrix
from tests.training.pe_rank.pe_lists import training_lists


def test_equal_texts_are_encoded_once(encoder: Encoder) -> None:
    encoded: list[str] = []

    def encode(texts: Sequence[str]) -> Matrix:
        encoded.extend(texts)
        return encoder.encode_passages(texts)

    table = VectorTable(encode, ["a", "b", "a"], Console(quiet=True))
    np.testing.assert_allclose(table(["b", "a"]), encoder.encode_passages(["b", "a"]), atol=1e-6)
    assert encoded == ["a", "b"]


def test_texts_are_those_of_all_lists() -> None:
    lists = training_lists()
    parts = [lists[:1], lists[1:2]]
    assert list(texts_of(parts, "queries")) == [item.query.text for item in lists[:2]]
    assert list(texts_of(parts, "passages")) == [passage.text for item in lists[:2] for passage in item.passages]
