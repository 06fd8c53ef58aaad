"""FIRST with an early exit: scores of passages at their identifiers, settings that do not fit, and checkpoints."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from rerank.config import FirstModel
from rerank.errors import CheckpointError
from rerank.models.early_exit import score_direction
from rerank.rankers.base import rank_windows
from rerank.rankers.first import FirstRanker
from rerank.reranking.load_models import load_first
from rerank.types import Passage, Query, Window
from tests.causal_lms import finish, write_causal_lm
from tests.small_tokenizers import byte_level, metaspace

TEXTS = ["a flea", "the moon and the tides", "bread", "bread", "", "sand " * 30]
TEMPLATE = "first_smollm2"


def window(*texts: str) -> Window:
    return Window(Query("what jumps"), tuple(Passage(f"d{place}", text) for place, text in enumerate(texts)))


@pytest.fixture(scope="module")
def lm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_causal_lm(tmp_path_factory.mktemp("lm") / "tiny", "llama", metaspace())


@pytest.fixture(scope="module")
def ranker(lm: Path) -> FirstRanker:
    return FirstRanker(lm, TEMPLATE, device="cpu", passage_tokens=20, exit_layer=1)


@torch.inference_mode()
def test_scores_are_the_states_at_the_identifiers_projected(lm: Path, ranker: FirstRanker) -> None:
    given = window(*TEXTS)
    whole = FirstRanker(lm, TEMPLATE, device="cpu", passage_tokens=20).encode(given).prompts[0]
    states = AutoModelForCausalLM.from_pretrained(lm)(torch.tensor([whole]), output_hidden_states=True).hidden_states[
        1
    ][0]
    behind = [whole.index(token) for token in ranker.identifiers.token_ids[: len(TEXTS)]]
    expected = torch.log_softmax(states[behind] @ score_direction(states.shape[1]), dim=0)
    scores = rank_windows(ranker, [given])[0].scores
    assert scores == pytest.approx(expected.tolist(), abs=1e-5)
    assert max(scores) - min(scores) > 0.01


def test_scores_of_a_passage_do_not_depend_on_those_behind_it(ranker: FirstRanker) -> None:
    few, many = (rank_windows(ranker, [window(*TEXTS[:n])])[0].scores for n in (2, 5))
    assert many[1] - many[0] == pytest.approx(few[1] - few[0], abs=1e-5)


def test_identifier_that_merges_with_its_bracket_is_refused(tmp_path: Path) -> None:
    lm = write_causal_lm(tmp_path / "merging", "llama", byte_level())
    ranker = FirstRanker(lm, "first", device="cpu", exit_layer=1)
    with pytest.raises(CheckpointError, match=r"identifier \d of 6 is not a token of its own .* leave early_exit out"):
        ranker.encode(window(*TEXTS))


def with_manifest(lm: Path, folder: Path, layer: int) -> Path:
    """A copy of a checkpoint, with a manifest that has this layer of the early exit."""
    shutil.copytree(lm, folder)
    finish(folder, ranker="first", template=TEMPLATE, identifiers="letters", early_exit_layer=layer)
    return folder


def test_layer_is_that_of_the_manifest(lm: Path, tmp_path: Path) -> None:
    trained = with_manifest(lm, tmp_path / "trained", 1)
    model = FirstModel(name="m", ranker="first", path=trained, early_exit=True)
    ranker = load_first(model, "cpu")
    expected = FirstRanker(trained, TEMPLATE, device="cpu", exit_layer=1)
    given = window(*TEXTS)
    assert rank_windows(ranker, [given])[0].scores == rank_windows(expected, [given])[0].scores
    plain = load_first(model.model_copy(update={"early_exit": False}), "cpu")
    assert plain.encode(given).tokens > ranker.encode(given).tokens


def test_checkpoint_that_was_not_trained_for_it_is_refused(lm: Path, tmp_path: Path) -> None:
    for path in (lm, with_manifest(lm, tmp_path / "none", 0)):
        with pytest.raises(CheckpointError, match="was not trained for early_exit; leave it out, or train with"):
            load_first(FirstModel(name="m", ranker="first", path=path, early_exit=True), "cpu")
