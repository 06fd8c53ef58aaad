"""Bundled checkpoints: size, manifest, model card and golden scores."""

from __future__ import annotations

from pathlib import Path

import pytest

from rerank import bundled
from rerank.config import BUNDLED_MODELS, FirstModel, ModelConfig, PERankModel
from rerank.errors import SelfTestFailed
from rerank.manifest import read_manifest
from rerank.models.encoder import Encoder
from rerank.rankers.self_test import CPU_TOLERANCE, GOLDEN, check
from rerank.registry import load_models, load_ranker, scoring_settings, with_path

FOLDERS = (bundled.FIRST, bundled.PE_RANK)
MIB = 2**20


def test_weights_fit_a_repository() -> None:
    sizes = [path.stat().st_size for folder in FOLDERS for path in folder.iterdir()]
    assert max(sizes) <= 40 * MIB
    assert sum(sizes) <= 64 * MIB


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_manifest_has_valid_hashes_and_no_absolute_paths(folder: Path) -> None:
    manifest = read_manifest(folder)  # raises if a hash differs
    assert manifest is not None
    assert not [word for word in manifest.command.split() if word.startswith("/")]
    assert manifest.data


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_card_states_data_licence_command_time_and_results(folder: Path) -> None:
    card = (folder / "README.md").read_text(encoding="utf-8")
    for word in ("| data |", "| licence |", "reproduce_defaults.sh", "| time |", "nDCG@10"):
        assert word in card


def test_default_models_start_in_silence(encoder: Encoder, caplog: pytest.LogCaptureFixture) -> None:
    """Each is compared with golden scores of its own settings; the next test shows that it is."""
    with caplog.at_level("INFO"):
        models = load_models(BUNDLED_MODELS, encoder, "cpu").describe()
    assert not [model.problem for model in models if model.problem]
    assert not [record.getMessage() for record in caplog.records if record.name.startswith("rerank")]


@pytest.mark.parametrize("model", BUNDLED_MODELS[:2], ids=lambda model: model.name)
def test_damaged_weight_of_a_default_model_is_noticed(encoder: Encoder, model: ModelConfig) -> None:
    """One number of one layer, as a broken disk or another version of the base would change it."""
    model = with_path(model, encoder)
    ranker = load_ranker(model, encoder, "cpu")
    layer = ranker._reader._model.get_decoder().layers[1]  # type: ignore[union-attr]
    layer.post_attention_layernorm.weight.data[7] *= -3
    with pytest.raises(SelfTestFailed, match=r"scores differ from golden.*\.json by"):
        check(ranker, scoring_settings(model), model.path, CPU_TOLERANCE)  # type: ignore[union-attr]


def test_first_gives_its_golden_scores() -> None:
    model = FirstModel(name="first", ranker="first")
    assert (bundled.FIRST / GOLDEN).is_file()
    check(load_ranker(model, None, "cpu"), scoring_settings(model), bundled.FIRST, CPU_TOLERANCE)  # type: ignore[arg-type]


def test_pe_rank_gives_its_golden_scores(encoder: Encoder) -> None:
    model = PERankModel(name="pe-rank", ranker="pe-rank", path=bundled.PE_RANK)
    assert (bundled.PE_RANK / GOLDEN).is_file()
    check(load_ranker(model, encoder, "cpu"), scoring_settings(model), bundled.PE_RANK, CPU_TOLERANCE)
