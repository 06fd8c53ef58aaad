"""`distill-retriever`: trains the encoder of an index to find the passages that a ranker prefers.

distill-retriever --index indexes/cranfield --queries cranfield --held-out test --output-dir runs/retriever
rerank serve --index runs/retriever/index --encoder runs/retriever/encoder
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from rerank.commands.app import example_in
from rerank_training.retriever.arguments import RetrieverArguments, RetrieverRunFlags
from rerank_training.trainer.app import training_app
from rerank_training.trainer.command import run_training

if TYPE_CHECKING:
    from rerank_training.trainer.arguments import RunArguments


@training_app(RetrieverArguments, RetrieverRunFlags, example=example_in(__doc__))
def app(arguments: RetrieverArguments, settings: RunArguments) -> None:
    """Train the encoder of an index to find the passages that a ranker prefers.

    No judgement is used for training. Round by round, the encoder is trained on its own newest mistakes.
    """
    from rerank_training.retriever.distillation import distill_retriever  # imports the index, not needed by --help

    distill_retriever(arguments, settings)


main = partial(run_training, app)
