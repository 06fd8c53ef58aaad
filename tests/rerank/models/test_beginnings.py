"""Beginnings that pairs share: read once, the same scores as with each pair, and only where the model allows it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from rerank.models.beginnings import SharedBeginnings
from rerank.rankers.base import rank_windows
from rerank.rankers.cross_encoder import CrossEncoderRanker
from rerank.types import Passage, Query, Window
from tests.cross_encoders import write_cross_encoder
from tests.random_models import PACKABLE

TEXTS = [" ".join(f"w{(7 * place + word) % 11}" for word in range(1 + 9 * place % 37)) for place in range(9)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_cross_encoder(tmp_path_factory.mktemp("cross-encoder") / "qwen3", "qwen3")


@pytest.fixture
def ranker(folder: Path) -> CrossEncoderRanker:
    return CrossEncoderRanker(folder, "cpu")


@pytest.fixture
def apart(folder: Path) -> CrossEncoderRanker:
    """Reads the beginning with each pair."""
    ranker = CrossEncoderRanker(folder, "cpu")
    ranker._scorer.beginnings = None
    return ranker


def window(ranker: CrossEncoderRanker, texts: list[str], query: str = "which w3") -> Window:
    prepared = ranker.prepare(Query(query), [Passage(str(place), text) for place, text in enumerate(texts)])
    return Window(prepared.query, prepared.passages)


def states(ranker: CrossEncoderRanker) -> Any:
    assert ranker._scorer.beginnings is not None
    return ranker._scorer.beginnings.states


def test_scores_are_those_of_whole_pairs(ranker: CrossEncoderRanker, apart: CrossEncoderRanker) -> None:
    for query in ("which w3", "another and longer query"):
        for texts in (TEXTS, TEXTS[:1], [*TEXTS[:3], ""], ["\nw1", "w2"]):
            (expected,) = rank_windows(apart, [window(apart, texts, query)])
            (found,) = rank_windows(ranker, [window(ranker, texts, query)])
            assert found.scores == pytest.approx(expected.scores, abs=1e-5)


def test_beginning_of_a_query_is_read_once_for_all_its_windows(ranker: CrossEncoderRanker) -> None:
    states(ranker).clear()
    windows = [window(ranker, TEXTS[:2]), window(ranker, TEXTS[2:]), window(ranker, TEXTS, "another query")]
    rank_windows(ranker, windows)
    assert states(ranker).misses == 2
    rank_windows(ranker, windows)
    assert states(ranker).misses == 2


def test_beginning_counts_once(ranker: CrossEncoderRanker, apart: CrossEncoderRanker) -> None:
    first, again, whole = (each.encode(window(each, TEXTS)) for each in (ranker, ranker, apart))
    shared = len(first.beginning)
    assert shared > 20
    assert whole.tokens - first.tokens == shared * (len(TEXTS) - 1)
    assert whole.tokens - again.tokens == shared * len(TEXTS)
    assert whole.beginning == ()


@pytest.mark.parametrize(("name", "can_share"), [("llama", True), ("qwen3", True), ("mistral", False)])
def test_layers_with_windows_share_nothing(name: str, can_share: bool) -> None:
    model = AutoModelForCausalLM.from_config(copy.deepcopy(PACKABLE[name]))
    assert SharedBeginnings.can_share(model) == can_share


def test_model_whose_scores_would_differ_reads_whole_pairs(
    folder: Path, apart: CrossEncoderRanker, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs_after = SharedBeginnings.inputs_after

    def at_wrong_positions(self: SharedBeginnings, beginning: tuple[int, ...], mask: torch.Tensor) -> dict[str, Any]:
        inputs = dict(inputs_after(self, beginning, mask))
        return inputs | {"position_ids": 7 * inputs["position_ids"]}

    monkeypatch.setattr(SharedBeginnings, "inputs_after", at_wrong_positions)
    ranker = CrossEncoderRanker(folder, "cpu")
    assert ranker._scorer.beginnings is None
    (found,), (expected,) = (rank_windows(each, [window(each, TEXTS)]) for each in (ranker, apart))
    assert found.scores == pytest.approx(expected.scores, abs=1e-5)
