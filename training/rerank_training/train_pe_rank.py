"""`train-pe-rank`: trains a causal language model to rank passages that it reads as one vector each (PE-Rank).

The encoder that makes the vectors is not trained.

train-pe-rank --stage align --lists train.jsonl --base checkpoints/mistral --output-dir runs/align
train-pe-rank --lists train.jsonl --eval-lists held-out.jsonl --base runs/align/final --output-dir runs/pe-rank
"""

from __future__ import annotations

from rerank_training.pe_rank.arguments import PERankArguments
from rerank_training.trainer.command import run_training
from rerank_training.trainer.flags import parse_arguments


def main() -> None:
    """Console entry point."""
    run_training(_train)


def _train() -> None:
    arguments, settings = parse_arguments(PERankArguments, description=__doc__)
    from rerank_training.pe_rank.training import train_pe_rank  # imports peft and the encoder, not needed by --help

    train_pe_rank(arguments, settings)


if __name__ == "__main__":
    main()
