"""Fixtures of the trainings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from rerank.models.encoder import Encoder

#: Trains a step in a folder, with further settings of the run, and returns the folder of the result.
Train = Callable[..., Path]

#: Plain gradient descent: Adam's first steps have the sizes of the gradients' signs, also where one is rounding alone.
FLAGS: dict[str, Any] = {"optim": "sgd", "max_steps": 1, "save_steps": 1, "learning_rate": 0.1, "warmup_steps": 0}
FLAGS |= {"per_device_train_batch_size": 3, "use_cpu": True, "report_to": "none"}


@pytest.fixture(params=["train-pe-rank", "train-e2rank"])
def train(request: pytest.FixtureRequest, checkpoint: Path, encoder: Encoder, tmp_path: Path) -> Train:
    # here, because tests in this folder run without torch
    from rerank_training.e2rank.arguments import E2RankArguments
    from rerank_training.e2rank.training import train_e2rank
    from rerank_training.pe_rank.arguments import PERankArguments
    from rerank_training.pe_rank.training import train_pe_rank
    from rerank_training.trainer.arguments import RunArguments

    from tests.training.small_lists import e2rank_base, write_training_lists

    lists = str(write_training_lists(tmp_path / "lists.jsonl", 6))
    if request.param == "train-pe-rank":
        pe_rank = PERankArguments(lists=lists, base=str(checkpoint), window_size=4, text_weight=1.0)
        return lambda out, **more: train_pe_rank(pe_rank, RunArguments(output_dir=str(out), **FLAGS | more), encoder)
    e2rank = E2RankArguments(lists=lists, base=e2rank_base(tmp_path / "base"), passage_tokens=64)
    return lambda out, **more: train_e2rank(e2rank, RunArguments(output_dir=str(out), **FLAGS | more))
