"""A step of several batches is the step of one batch of all their lists."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from rerank_training.trainer.losses import ranknet
from rerank_training.trainer.ranking_trainer import RankingTrainer
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import TrainingArguments

from tests.training.conftest import FLAGS

#: Items of each list: those that have a relevance of 0 only have no pair, and do not count in the second term.
RELEVANCE = [[0.0, 1.0, 2.0, 0.0, 1.0], [1.0, 0.0], [0.0, 0.0], [3.0, 1.0, 2.0]]


@dataclass(frozen=True)
class TwoTerms:
    """The mean over passages of the squared scores, and RankNet over lists."""

    def terms(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        scores = model(batch["x"]).squeeze(-1)
        return torch.stack([scores[batch["mask"]].square().mean(), ranknet(scores, batch["relevance"], batch["mask"])])

    def counts(self, batch: dict[str, Tensor]) -> Tensor:
        return torch.stack([batch["mask"].sum(), ranknet.count(batch["relevance"], batch["mask"])])

    def scores(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        raise NotImplementedError


def collate(rows: list[list[float]]) -> dict[str, Tensor]:
    relevance = nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
    mask = nn.utils.rnn.pad_sequence([torch.ones(len(row)) for row in rows], batch_first=True).bool()
    x = torch.stack([relevance, torch.arange(relevance.shape[1]).expand_as(relevance).float()], dim=-1)
    return {"x": x.cos(), "relevance": relevance, "mask": mask}


def stepped(folder: Path, size: int, **changed: Any) -> Tensor:
    """(2,) weights after one step of all lists in batches of this size, with these arguments changed."""
    model = nn.Linear(2, 1, bias=False)
    nn.init.ones_(model.weight)
    settings = {"per_device_train_batch_size": size, "gradient_accumulation_steps": len(RELEVANCE) // size}
    settings |= {"learning_rate": 1.0, "lr_scheduler_type": "constant", "max_grad_norm": 0.0, "save_strategy": "no"}
    settings |= {"remove_unused_columns": False, "disable_tqdm": True}
    arguments = TrainingArguments(**FLAGS | settings | {"output_dir": str(folder)} | changed)
    trainer = RankingTrainer(TwoTerms(), model=model, args=arguments, train_dataset=RELEVANCE, data_collator=collate)
    trainer.train()
    return model.weight.detach()[0]


@pytest.mark.parametrize("size", [1, 2])
def test_accumulated_batches_take_the_step_of_one_batch(tmp_path, size):
    whole, parts = stepped(tmp_path, 4), stepped(tmp_path, size)
    torch.testing.assert_close(parts, whole)
    assert (whole - 1).abs().max() > 0.1


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640)])
def test_files_of_a_save_have_the_mode_of_other_new_files(tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        stepped(tmp_path, 4, save_strategy="steps", save_steps=1)
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "checkpoint-1").iterdir()}
    assert {"model.safetensors", "optimizer.pt", "trainer_state.json"} < modes.keys()
    assert set(modes.values()) == {mode}


@pytest.mark.slow
def test_noise_on_the_embeddings_changes_the_training(train, tmp_path):
    plain = load_file(train(tmp_path / "plain") / "model.safetensors")
    noise = {"neftune_noise_alpha": 5, "gradient_checkpointing": True}
    noisy = load_file(train(tmp_path / "noisy", **noise) / "model.safetensors")
    assert any(not torch.equal(noisy[name], plain[name]) for name in plain)
