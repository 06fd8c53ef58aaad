"""`distill-retriever`: trains the encoder of an index to find the passages that a ranker prefers.

No judgement is used for training. Round by round, the encoder is trained on its own newest mistakes.

distill-retriever --index indexes/cranfield --queries cranfield --held-out test --output-dir runs/retriever
rerank serve --index runs/retriever/index --encoder runs/retriever/encoder
"""

from __future__ import annotations

from rerank_training.retriever.arguments import RetrieverArguments, RetrieverRunFlags
from rerank_training.trainer.command import run_training
from rerank_training.trainer.flags import parse_arguments


def main() -> None:
    """Console entry point."""
    run_training(_distill)


def _distill() -> None:
    arguments, settings = parse_arguments(RetrieverArguments, RetrieverRunFlags, description=__doc__)
    from rerank_training.retriever.distillation import distill_retriever  # imports the index, not needed by --help

    distill_retriever(arguments, settings)


if __name__ == "__main__":
    main()
