"""`train-first`: trains a causal language model to rank by the logits of its passage identifiers (FIRST).

train-first --lists train.jsonl --eval-lists held-out.jsonl --base mistralai/Mistral-7B-Instruct-v0.3 --lora-rank 16 \
    --output-dir runs/first
"""

from __future__ import annotations

from rerank_training.first.arguments import FirstArguments
from rerank_training.trainer.command import run_training
from rerank_training.trainer.flags import parse_arguments


def main() -> None:
    """Console entry point."""
    run_training(_train)


def _train() -> None:
    arguments, settings = parse_arguments(FirstArguments, description=__doc__)
    from rerank_training.first.training import train_first  # imports peft, which --help need not wait for

    train_first(arguments, settings)


if __name__ == "__main__":
    main()
