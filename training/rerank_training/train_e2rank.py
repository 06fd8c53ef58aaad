"""`train-e2rank`: trains an encoder to retrieve, and to rank by a vector of query and list (E2Rank).

train-e2rank --lists train.jsonl --base checkpoints/Qwen3-Embedding-0.6B --lora-rank 16 --output-dir runs/e2rank
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from rerank.commands.app import example_in
from rerank_training.e2rank.arguments import E2RankArguments, E2RankRunFlags
from rerank_training.trainer.app import training_app
from rerank_training.trainer.command import run_training

if TYPE_CHECKING:
    from rerank_training.trainer.arguments import RunArguments


@training_app(E2RankArguments, E2RankRunFlags, example=example_in(__doc__))
def app(arguments: E2RankArguments, settings: RunArguments) -> None:
    """Train an encoder to retrieve, and to rank by a vector of query and list (E2Rank)."""
    from rerank_training.e2rank.training import train_e2rank  # imports peft, which --help need not wait for

    train_e2rank(arguments, settings)


main = partial(run_training, app)
