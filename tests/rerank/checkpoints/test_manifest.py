"""Manifests of checkpoints, and the names that checkpoints have in results."""

from pathlib import Path

import pytest

from rerank.checkpoints.manifest import model_id, trained_window


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


@pytest.mark.parametrize("text", [None, "{", "[]", "{}", '{"window_size": null}'])
def test_folder_without_a_readable_manifest_has_no_trained_window(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "rerank.json").write_text(text)
    assert trained_window(tmp_path) is None
