"""Manifests of checkpoints, and the names that checkpoints have in results."""

from pathlib import Path

import pytest

from rerank.checkpoints.manifest import model_id


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("runs/mine/final", "mine"),
        ("runs/mine/checkpoint-200", "mine/checkpoint-200"),
        ("models/first_minilm", "first_minilm"),
    ],
)
def test_results_of_training_are_named_by_their_run(path: str, name: str) -> None:
    assert model_id(Path(path)) == name
