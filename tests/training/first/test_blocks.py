"""Training with block attention: its scores are those of serving, for full and for short windows of a batch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from rerank_training.first.arguments import FirstArguments
from rerank_training.first.blocks import BlockCollator, BlockObjective, block_collator
from rerank_training.first.prompt import PromptSettings
from rerank_training.lists.training_list import TrainingList
from rerank_training.trainer.losses import ranknet
from transformers import AutoModelForCausalLM, AutoTokenizer

from rerank.errors import CheckpointError, ConfigError
from rerank.prompting.identifiers import IdentifierKind
from rerank.prompting.templates import load_template
from rerank.rankers.base import rank_windows
from rerank.rankers.first_block import BlockFirstRanker
from rerank.types import Passage, Query, Window
from tests.causal_lms import write_causal_lm
from tests.small_tokenizers import byte_level

PROMPT = PromptSettings(load_template("first_block"), IdentifierKind.LETTERS, window_size=20, passage_tokens=20)
RANK = FirstArguments(base="", lists="", objective="rank")
#: In the order of their tokens, in which serving gives out the identifiers.
ITEMS = [
    TrainingList(Query(query), tuple(Passage(text, text) for text in texts), tuple(map(float, range(len(texts)))))
    for query, texts in [("what jumps", ["a flea", "bread", "sand " * 30, "the moon"]), ("who sings", ["a", "b"])]
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_causal_lm(tmp_path_factory.mktemp("lm") / "tiny", "llama", byte_level())


def trained(checkpoint: Path, arguments: FirstArguments = RANK) -> tuple[torch.nn.Module, BlockCollator]:
    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    return model, block_collator(arguments, PROMPT, model, AutoTokenizer.from_pretrained(checkpoint), 4096)


def objective_of(collator: BlockCollator, probe_weight: float = 0.0) -> BlockObjective:
    return BlockObjective("rank", ranknet, 1.0, collator.identifiers.token_ids, probe_weight, probe_layer=1)


def test_scores_are_those_of_serving(checkpoint: Path) -> None:
    model, collator = trained(checkpoint)
    with torch.no_grad():
        rows = objective_of(collator).scores(model, collator(ITEMS))
    ranker = BlockFirstRanker(checkpoint, "first_block", device="cpu", passage_tokens=20)
    for row, item in zip(rows, ITEMS, strict=True):
        prepared = ranker.prepare(item.query, item.passages)
        assert sorted(passage.token_ids for passage in prepared.passages) == [p.token_ids for p in prepared.passages]
        served = rank_windows(ranker, [Window(prepared.query, prepared.passages)])[0].scores
        own = torch.log_softmax(row[: len(item.passages)], dim=0).tolist()
        assert served == pytest.approx(own, abs=1e-5)


def test_loss_trains_the_model_and_the_probe_adds_to_it(checkpoint: Path) -> None:
    model, collator = trained(checkpoint)
    batch = collator(ITEMS)
    plain, probed = (objective_of(collator, weight).loss(model, batch) for weight in (0.0, 1.0))
    assert probed > plain > 0
    probed.backward()
    assert all(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in model.parameters())


def test_batch_has_the_lengths_of_all_parts(checkpoint: Path) -> None:
    _, collator = trained(checkpoint)
    batch = collator(ITEMS)
    assert batch["lengths"].shape == (2, 2 + 4)
    assert batch["lengths"].sum(dim=1).max() == batch["input_ids"].shape[1]
    assert (batch["lengths"][1, 4:] == 0).all()


def test_other_objectives_are_refused(checkpoint: Path) -> None:
    with pytest.raises(ConfigError, match=r"--objective joint .* needs --objective rank"):
        trained(checkpoint, FirstArguments(base="", lists="", objective="joint"))


def test_sliding_windows_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="mistral"):
        trained(write_causal_lm(tmp_path / "lm", "mistral", byte_level()))
