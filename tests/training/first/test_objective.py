"""Objective of FIRST, compared with slow computations: full logits of each window alone, and loops."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from rerank_training.first.objective import FirstCollator, FirstExample, FirstObjective, ObjectiveName, PromptSettings
from rerank_training.lists.training_list import TrainingList
from rerank_training.trainer.losses import ranknet
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from rerank.prompting.identifiers import IdentifierKind
from rerank.prompting.templates import load_template
from tests.causal_lms import write_causal_lm
from tests.slow_losses import slow_ranknet
from tests.small_tokenizers import uncased
from tests.word_lists import word_lists


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> nn.Module:
    folder = write_causal_lm(tmp_path_factory.mktemp("lm") / "tiny", "llama", uncased())
    loaded: nn.Module = AutoModelForCausalLM.from_pretrained(Path(folder))
    return loaded.eval()


@pytest.fixture(scope="module")
def examples() -> FirstCollator:
    prompt = PromptSettings(load_template("first_small"), IdentifierKind.LETTERS, window_size=4, passage_tokens=20)
    return FirstCollator(uncased(), prompt, 4096)


@pytest.fixture(scope="module")
def windows() -> list[TrainingList]:
    """Three windows of 4, 2 and 3 passages."""
    sizes = ((0, 1, 2, 3), (0, 1), (1, 2, 3))
    return [
        TrainingList(item.query, item.passages, tuple(float(i % 3) for i in range(4))).select(positions)
        for item, positions in zip(word_lists(3), sizes, strict=True)
    ]


def objective_of(examples: FirstCollator, objective: ObjectiveName, rank_weight: float = 10.0) -> FirstObjective:
    return FirstObjective(objective, ranknet, rank_weight, examples.identifiers.token_ids)


def loss_of(objective: FirstObjective, model: nn.Module, examples: FirstCollator, items: list[TrainingList]) -> float:
    return objective.loss(model, examples(items)).item()


# --- slow


def full_logits(model: nn.Module, example: FirstExample) -> Tensor:
    """(T, vocabulary) logits of one window without padding."""
    with torch.no_grad():
        logits: Tensor = model(torch.tensor([example.token_ids])).logits
    return logits[0]


def slow_rank(model: nn.Module, examples: FirstCollator, items: list[TrainingList]) -> float:
    losses = []
    for item in items:
        logits = full_logits(model, example := examples.example(item))
        ids = examples.identifiers.token_ids[: len(item.passages)]
        losses.append(slow_ranknet([logits[example.bracket_index, one].item() for one in ids], list(item.relevance)))
    return sum(losses) / len(losses)


def slow_lm(model: nn.Module, examples: FirstCollator, items: list[TrainingList]) -> float:
    """Mean over the tokens of all answers, the opening bracket included."""
    losses = []
    for item in items:
        logits = full_logits(model, example := examples.example(item))
        for at in range(example.bracket_index - 1, len(example.token_ids) - 1):
            losses.append(-torch.log_softmax(logits[at], dim=0)[example.token_ids[at + 1]].item())
    return sum(losses) / len(losses)


# --- properties


@pytest.mark.parametrize(
    ("objective", "rank_weight", "lm_share", "rank_share"),
    [("rank", 10.0, 0, 1), ("lm", 10.0, 1, 0), ("joint", 10.0, 1, 10), ("joint", 0.5, 1, 0.5)],
)
def test_loss_is_that_of_the_answer_and_that_of_the_identifiers_at_the_bracket(
    model: nn.Module,
    examples: FirstCollator,
    windows: list[TrainingList],
    objective: ObjectiveName,
    rank_weight: float,
    lm_share: float,
    rank_share: float,
) -> None:
    found = loss_of(objective_of(examples, objective, rank_weight), model, examples, windows)
    expected = lm_share * slow_lm(model, examples, windows) + rank_share * slow_rank(model, examples, windows)
    assert found == pytest.approx(expected, rel=1e-5)
