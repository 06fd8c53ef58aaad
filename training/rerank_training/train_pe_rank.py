"""`train-pe-rank`: trains a causal language model to rank passages that it reads as one vector each (PE-Rank).

train-pe-rank --stage align --lists train.jsonl --base checkpoints/mistral --output-dir runs/align
train-pe-rank --lists train.jsonl --eval-lists held-out.jsonl --base runs/align/final --output-dir runs/pe-rank
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from rerank.commands.app import example_in
from rerank_training.pe_rank.arguments import PERankArguments
from rerank_training.trainer.app import training_app
from rerank_training.trainer.command import run_training

if TYPE_CHECKING:
    from rerank_training.trainer.arguments import RunArguments


@training_app(PERankArguments, example=example_in(__doc__))
def app(arguments: PERankArguments, settings: RunArguments) -> None:
    """Train a causal language model to rank passages that it reads as one vector each (PE-Rank).

    The encoder that makes the vectors is not trained.
    """
    from rerank_training.pe_rank.training import train_pe_rank  # imports peft and the encoder, not needed by --help

    train_pe_rank(arguments, settings)


main = partial(run_training, app)
