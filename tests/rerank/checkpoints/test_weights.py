"""Packed checkpoints are small, whole, and served as they were trained."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rerank.checkpoints.manifest import read_manifest
from rerank.checkpoints.weights import pack
from rerank.errors import CheckpointError
from rerank.models.loading import load_causal_lm
from rerank.rankers.base import rank_windows
from rerank.rankers.pe_rank import PERankRanker
from tests.causal_lms import finish
from tests.pe_checkpoints import change_weights, vector_window, write_perturbed
from tests.word_lists import first_run, write_inputs

pytestmark = pytest.mark.slow


@pytest.fixture
def trained(checkpoint: Path, tmp_path: Path) -> Path:
    """A checkpoint with a manifest, as training writes it."""
    folder = write_perturbed(tmp_path / "trained", checkpoint)
    finish(folder)
    return folder


def packed(trained: Path, out: Path, *start: Any) -> Path:
    out.mkdir()
    pack(trained, out, *start)
    return out


def test_weights_are_float16_and_the_rest_is_copied(trained, tmp_path):
    out = packed(trained, tmp_path / "out")
    before, after = load_file(trained / "model.safetensors"), load_file(out / "model.safetensors")
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], tensor.half()) for name, tensor in before.items())
    assert (out / "config.json").read_bytes() == (trained / "config.json").read_bytes()
    manifest = read_manifest(out)  # checks the hash
    assert manifest.weights_sha256 != read_manifest(trained).weights_sha256


def test_packed_checkpoint_is_served_in_float32_with_nearly_the_same_scores(trained, encoder, tmp_path):
    out = packed(trained, tmp_path / "out")
    window = vector_window(8, seed=0)
    rankers = [PERankRanker(folder, encoder, "cpu") for folder in (trained, out)]
    assert rankers[1]._transformer.dtype == torch.float32
    query = rankers[0].prepare(window.query, window.passages).query
    window = type(window)(query, window.passages)
    before, after = (torch.tensor(rank_windows(ranker, [window])[0].scores) for ranker in rankers)
    torch.testing.assert_close(after, before, atol=0.05, rtol=0)


def test_number_that_float16_cannot_hold_is_named(trained, tmp_path):
    change_weights(trained, {"projector.down.bias": torch.full((384,), 1e5)})
    finish(trained)
    with pytest.raises(CheckpointError, match=r"projector.down.bias holds numbers up to 1e\+05"):
        packed(trained, tmp_path / "out")


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_share_of_the_training_lies_between_start_and_end(trained, checkpoint, tmp_path, share):
    out = packed(trained, tmp_path / "out", checkpoint, share)
    start, end = load_file(checkpoint / "model.safetensors"), load_file(trained / "model.safetensors")
    for name, tensor in load_file(out / "model.safetensors").items():
        torch.testing.assert_close(tensor, ((1 - share) * start[name] + share * end[name]).half())
    manifest = read_manifest(out)
    assert f"--share {share}" in manifest.command


def test_start_of_another_training_is_refused(trained, checkpoint, tmp_path):
    other = write_perturbed(tmp_path / "other", checkpoint)
    change_weights(other, {"projector.up.bias": torch.zeros(3)})
    with pytest.raises(CheckpointError, match=r"projector\.up\.bias has the shapes"):
        packed(trained, tmp_path / "out", other, 0.5)


def test_packed_adapter_is_served_with_its_base(tmp_path):
    inputs = write_inputs(tmp_path, 8)
    adapter = first_run(inputs, tmp_path / "run", "--max-steps", "1", "--lora-rank", "2", "--learning-rate", "1e-2")
    out = packed(adapter, tmp_path / "out")
    before, after = (load_file(folder / "adapter_model.safetensors") for folder in (adapter, out))
    halves = {name: tensor.half().tolist() for name, tensor in before.items()}
    assert {name: tensor.tolist() for name, tensor in after.items()} == halves
    first, second = (load_causal_lm(folder, torch.device("cpu")).model for folder in (adapter, out))
    token_ids = torch.arange(5)[None]
    torch.testing.assert_close(first(token_ids).logits, second(token_ids).logits, atol=1e-3, rtol=0)
    assert read_manifest(out) is not None
