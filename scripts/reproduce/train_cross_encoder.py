"""Trains a cross-encoder of the size of PE-Rank on training lists, to compare it with listwise teachers of feedback.

# at commit 775db5ca, for the lists of the published figures: later code has no such teacher
build-lists --requests dl21/requests.jsonl --qrels dl21/qrels.txt --teacher qrels-fusion --lists-per-query 5 \\
  --passages 10 --depth 60 --passage-words 60 --order random --seed 1 --out lists.jsonl
python -m scripts.reproduce.train_cross_encoder --lists lists.jsonl --out checkpoints/cross-encoder

It begins with the weights of the default encoder, takes one pass over the lists with products in bfloat16, and runs on
one thread of a processor, for some four minutes where it has bfloat16.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rerank_training.lists.files import read_lists
from rerank_training.lists.training_list import TrainingList
from rerank_training.trainer.losses import rank_loss_named
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForSequenceClassification, AutoTokenizer, get_linear_schedule_with_warmup

from rerank.commands.progress import with_progress
from rerank.commands.run import console
from rerank.models.encoder import Encoder
from rerank.util.files import atomic_folder


def main(
    lists: Annotated[Path, typer.Option(help="Training lists, as build-lists writes them.")],
    out: Annotated[Path, typer.Option(help="Folder to create with the cross-encoder.")],
    max_tokens: Annotated[int, typer.Option(help="Tokens of query and passage that are read in training.")] = 128,
    batch_size: Annotated[int, typer.Option(help="Lists of a step.")] = 4,
    learning_rate: Annotated[float, typer.Option(help="Peak learning rate.")] = 1e-4,
) -> None:
    """Train a cross-encoder with RankNet."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    base = Encoder(device="cpu").folder
    model = AutoModelForSequenceClassification.from_pretrained(base, num_labels=1, trust_remote_code=False)
    tokenizer = AutoTokenizer.from_pretrained(base, model_max_length=max_tokens, trust_remote_code=False)
    rows = list(read_lists(lists))
    random.Random(1).shuffle(rows)
    batches = [rows[first : first + batch_size] for first in range(0, len(rows), batch_size)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    schedule = get_linear_schedule_with_warmup(optimizer, len(batches) // 10, len(batches))
    model.train()
    for step, batch in enumerate(with_progress(batches, "training, steps", len(batches), console)):
        with torch.autocast("cpu", torch.bfloat16):
            loss = _loss(model, tokenizer, batch)
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 20 == 0:
            console.print(f"step {step}: loss {loss.item():.4f}")
    with atomic_folder(out) as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def _loss(model: Any, tokenizer: Any, batch: Sequence[TrainingList]) -> torch.Tensor:
    """RankNet over the lists of a batch, whose pairs are read in one pass."""
    pairs = [(item.query.text, passage.text) for item in batch for passage in item.passages]
    read = tokenizer(pairs, padding=True, truncation="only_second", return_tensors="pt")
    scores = model(**read).logits[:, 0].split([len(item.passages) for item in batch])
    relevance = [torch.tensor(item.relevance) for item in batch]
    mask = pad_sequence([torch.ones_like(row, dtype=torch.bool) for row in relevance], batch_first=True)
    padded = [pad_sequence(list(rows), batch_first=True) for rows in (scores, relevance)]
    return rank_loss_named("ranknet")(padded[0], padded[1], mask)


if __name__ == "__main__":
    typer.run(main)
