"""Vectors of a training's texts: on the disk without a name, and those of all lists."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from rerank_training.lists.vector_table import ListTexts, VectorTable
from rich.console import Console

from rerank.errors import ConfigError
from rerank.models.encoder import Encoder
from tests.full_disk import largest_file
from tests.training.pe_rank.pe_lists import training_lists


def test_vectors_are_in_a_file_without_a_name(encoder: Encoder, tmp_path: Path) -> None:
    table = VectorTable(encoder.encode_passages, ["a", "b", "a"], Console(quiet=True), tmp_path)
    assert list(tmp_path.iterdir()) == []
    np.testing.assert_allclose(table(["b"]), encoder.encode_passages(["b"]), atol=1e-6)


def test_full_disk_is_named(encoder: Encoder, tmp_path: Path) -> None:
    with (
        largest_file(1000),
        pytest.raises(ConfigError, match=r"the vectors of 2 texts: .* free disk space"),
    ):
        VectorTable(encoder.encode_passages, ["a", "b"], Console(quiet=True), tmp_path)


def test_texts_are_those_of_all_lists() -> None:
    lists = training_lists()
    parts = [lists[:1], lists[1:2]]
    assert list(ListTexts(parts, "queries")) == [item.query.text for item in lists[:2]]
    assert list(ListTexts(parts, "passages")) == [passage.text for item in lists[:2] for passage in item.passages]
