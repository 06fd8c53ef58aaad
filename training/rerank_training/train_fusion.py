"""`train-fusion`: trains a correction of the fusion's scores on judged lists.

train-fusion --lists requests.jsonl --qrels qrels.txt --output-dir runs/fusion
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from rerank.commands.app import example_in
from rerank_training.fusion.arguments import FusionArguments, FusionRunFlags
from rerank_training.trainer.app import training_app
from rerank_training.trainer.command import run_training

if TYPE_CHECKING:
    from rerank_training.trainer.arguments import RunArguments


@training_app(FusionArguments, FusionRunFlags, example=example_in(__doc__))
def app(arguments: FusionArguments, settings: RunArguments) -> None:
    """Train a network that corrects the scores of the default ranker, on lists that you have judged.

    It reads each passage's vector and signals. It learns what is relevant in these lists; elsewhere it may do harm.
    """
    from rerank_training.fusion.training import train_fusion  # imports torch, which --help need not wait for

    train_fusion(arguments, settings)


main = partial(run_training, app)
