"""`rerank checkpoint`: a checkpoint to start from, packed and with reference scores."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rerank.rankers.self_test import GOLDEN
from tests.causal_lms import finish
from tests.rerank.commands.conftest import Command


@pytest.mark.slow
def test_checkpoint_is_written_packed_and_gets_its_scores(rerank: Command, tmp_path: Path) -> None:
    made, packed = tmp_path / "made", tmp_path / "packed"
    written = rerank("checkpoint", "zero-init", "--out", made)
    assert written.out == f"{made}: a model over sentence-transformers/all-MiniLM-L6-v2, seed 0\n"
    assert json.loads((made / "config.json").read_text(encoding="utf-8"))["num_hidden_layers"] == 3
    finish(made)
    assert rerank("checkpoint", "pack", made, "--out", packed).out.startswith(f"{packed}: ")
    assert rerank("checkpoint", "golden", packed).out == f"{packed / GOLDEN}\n"
    assert json.loads((packed / GOLDEN).read_text(encoding="utf-8"))["scores"]


def test_share_without_a_start_is_refused(rerank: Command, tmp_path: Path) -> None:
    refused = rerank("checkpoint", "pack", tmp_path, "--out", tmp_path / "out", "--share", 0.5)
    assert refused.code == 2
    assert "give --start and a --share below 1 together, or neither" in refused.err
