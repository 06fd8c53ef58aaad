"""Bundled checkpoints: size, manifest, model card and golden scores."""

from __future__ import annotations

from pathlib import Path

import pytest

from rerank import bundled
from rerank.config import FirstModel, PERankModel
from rerank.manifest import read_manifest
from rerank.models.encoder import Encoder
from rerank.rankers.self_test import CPU_TOLERANCE, GOLDEN, check
from rerank.registry import load_ranker, scoring_settings

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


def test_first_gives_its_golden_scores() -> None:
    model = FirstModel(name="first", ranker="first")
    assert (bundled.FIRST / GOLDEN).is_file()
    check(load_ranker(model, None, "cpu"), scoring_settings(model), bundled.FIRST, CPU_TOLERANCE)  # type: ignore[arg-type]


def test_pe_rank_gives_its_golden_scores(encoder: Encoder) -> None:
    model = PERankModel(name="pe-rank", ranker="pe-rank", path=bundled.PE_RANK)
    assert (bundled.PE_RANK / GOLDEN).is_file()
    check(load_ranker(model, encoder, "cpu"), scoring_settings(model), bundled.PE_RANK, CPU_TOLERANCE)
