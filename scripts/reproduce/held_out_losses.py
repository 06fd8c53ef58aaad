"""Prints the losses and nDCG@10 of checkpoints of FIRST on held-out lists.

python -m scripts.reproduce.held_out_losses --lists held-out.jsonl runs/1-lm/final runs/1-lm-first/final
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Annotated

import torch
import typer
from rerank_training.first.arguments import FirstArguments
from rerank_training.first.objective import FirstObjective
from rerank_training.first.prompt import prompt_settings
from rerank_training.first.training import load_base, make_collator
from rerank_training.trainer.data import read_training_lists
from rerank_training.trainer.losses import rank_loss_named
from rerank_training.trainer.ndcg import ndcg_at_10

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    folders: Annotated[list[Path], typer.Argument(help="Checkpoints of train-first.")],
    lists: Annotated[Path, typer.Option(help="Held-out lists, as build-lists writes them.")],
    passage_tokens: Annotated[int, typer.Option(help="Number of tokens to which passages are truncated.")] = 24,
) -> None:
    """Print a row for each checkpoint: mean loss of the language model, mean of weighted RankNet, mean nDCG@10."""
    print(f"{'checkpoint':40} LM loss  weighted RankNet  nDCG@10")
    for folder in folders:
        arguments = FirstArguments(lists="", eval_lists=str(lists), base=str(folder), passage_tokens=passage_tokens)
        language, rank, ndcg = (fmean(column) for column in zip(*_measure(arguments), strict=True))
        print(f"{folder!s:40} {language:7.4f}  {rank:16.4f}  {ndcg:7.4f}", flush=True)


@torch.inference_mode()
def _measure(arguments: FirstArguments) -> Iterator[tuple[float, float, float]]:
    """Both losses and nDCG@10 of each held-out list."""
    prompt = prompt_settings(arguments)
    model, tokenizer = load_base(arguments)
    collator = make_collator(arguments, prompt, model, tokenizer)
    ranknet = rank_loss_named("weighted-ranknet")
    objective = FirstObjective("lm", ranknet, 0.0, collator.identifiers.token_ids)
    for held_out in read_training_lists(arguments)[1]:
        batch = collator([held_out])
        scores, relevance, mask = objective.scores(model, batch).float(), batch["relevance"], batch["mask"]
        language, rank = objective.loss(model, batch), ranknet(scores, relevance, mask)
        yield float(language), float(rank), float(ndcg_at_10(scores, relevance, mask))


if __name__ == "__main__":
    app()
