"""The correction of a fusion: starts without effect, and loads only with the encoders that it was trained with."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from rerank.errors import CheckpointError
from rerank.models.fusion_correction import SIGNALS, CorrectionConfig, FusionCorrection, LoadedCorrection

SETTINGS = CorrectionConfig(
    encoder_name="e", encoder_sha256="a" * 64, sparse_encoder_sha256="b" * 64, dimension=6, width=4
)


def random_correction(seed: int = 0) -> FusionCorrection:
    torch.manual_seed(seed)
    network = FusionCorrection(SETTINGS)
    torch.nn.init.normal_(network.out.weight)
    return network


def inputs(n: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(n)
    return torch.randn(n, SIGNALS), torch.randn(n, 6), torch.randn(6)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    random_correction().save_pretrained(tmp_path)
    return tmp_path


def test_batch_of_lists_gives_what_each_list_gives_alone() -> None:
    network = random_correction().eval()
    lists = [inputs(7), inputs(7)]
    both = network(*(torch.stack(parts) for parts in zip(*lists, strict=True)))
    for row, item in zip(both, lists, strict=True):
        torch.testing.assert_close(row, network(*item))


def test_loaded_correction_is_the_saved_one_without_dropout(folder: Path) -> None:
    signals, vectors, query = inputs(5)
    loaded = LoadedCorrection(folder, SETTINGS.encoder_sha256, SETTINGS.sparse_encoder_sha256)
    expected = random_correction().eval()(signals, vectors, query).detach().numpy()
    for _ in range(2):
        np.testing.assert_allclose(loaded(signals.numpy(), vectors.numpy(), query.numpy()), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("hashes", "message"),
    [
        (
            ("c" * 64, "b" * 64),
            r"was trained with encoder e \(sha256 of weights and prompts a+\), but this service loads c+; use that one",
        ),
        (
            ("a" * 64, "c" * 64),
            r"was trained with sparse encoder \(sha256 of weights and prompts b+\), but",
        ),
    ],
)
def test_other_encoder_is_refused(folder: Path, hashes: tuple[str, str], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        LoadedCorrection(folder, *hashes)


@pytest.mark.parametrize("changed", [{"width": 5}, {"dimension": 7}])
def test_sizes_of_other_weights_are_refused(folder: Path, changed: dict[str, int]) -> None:
    settings = json.loads((folder / "config.json").read_text()) | changed
    (folder / "config.json").write_text(json.dumps(settings))
    with pytest.raises(CheckpointError, match=r"the weights do not fit config\.json"):
        LoadedCorrection(folder, SETTINGS.encoder_sha256, SETTINGS.sparse_encoder_sha256)
