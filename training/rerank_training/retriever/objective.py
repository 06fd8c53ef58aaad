"""Training objective of the retriever: a ranking loss on the scaled cosines of a query and its candidates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedTokenizerBase

from rerank_training.lists.training_list import TrainingList
from rerank_training.trainer.losses import RankLoss


class RetrieverCollator:
    """Collates lists into `input_ids` and `attention_mask` (B + P, T), `relevance` and `mask` (B, P).

    The first B texts are the queries, the others the P distinct passages of the batch, so that each is encoded once.
    `mask` is True for the passages of a list; `relevance` is 0 elsewhere.

    Args:
        max_tokens: number of tokens to which texts are truncated.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, max_tokens: int) -> None:
        self._tokenizer = tokenizer
        self._max_tokens = max_tokens

    def __call__(self, lists: Sequence[TrainingList]) -> dict[str, Tensor]:
        texts = {passage.doc_id: passage.text for item in lists for passage in item.passages}
        column = {doc_id: number for number, doc_id in enumerate(texts)}
        relevance = torch.zeros(len(lists), len(texts))
        mask = torch.zeros(len(lists), len(texts), dtype=torch.bool)
        for row, item in enumerate(lists):
            columns = [column[passage.doc_id] for passage in item.passages]
            relevance[row, columns] = torch.tensor(item.relevance, dtype=torch.float32)
            mask[row, columns] = True
        tokens = self._tokenizer(
            [*(item.query.text for item in lists), *texts.values()],
            padding=True,
            truncation=True,
            max_length=self._max_tokens,
            return_tensors="pt",
        )
        return {
            "input_ids": tokens["input_ids"],
            "attention_mask": tokens["attention_mask"],
            "relevance": relevance,
            "mask": mask,
        }


@dataclass(frozen=True)
class RetrieverObjective:
    """Loss of a batch of `RetrieverCollator`, and its scores.

    Attributes:
        rank_loss: any of RANK_LOSSES.
        scale: factor of the cosines in the loss: one over the temperature.
        in_batch_weight: weight of `in_batch_loss`; 0: none.
    """

    rank_loss: RankLoss
    scale: float
    in_batch_weight: float = 0.0

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        """Scalar."""
        scores = self._scores(model, batch)
        loss = self.rank_loss(scores, batch["relevance"], batch["mask"])
        if self.in_batch_weight:
            loss = loss + self.in_batch_weight * in_batch_loss(scores, batch["relevance"], batch["mask"])
        return loss

    @torch.no_grad()
    def scores(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        """(B, P) scaled cosines of every query with every passage of the batch."""
        return self._scores(model, batch)

    def _scores(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        vectors = model(batch["input_ids"], batch["attention_mask"])
        queries = len(batch["relevance"])
        scores: Tensor = self.scale * vectors[:queries] @ vectors[queries:].T
        return scores


def in_batch_loss(scores: Tensor, relevance: Tensor, mask: Tensor) -> Tensor:
    """Contrastive loss with in-batch negatives: the best passage of each list against the passages of other lists only.

    The mean over the lists of -log softmax of the best passage among it and those negatives.

    Args:
        scores, relevance, mask: (B, P); of equally relevant passages the first is the best.
    """
    best = relevance.masked_fill(~mask, -torch.inf).argmax(dim=1)
    excluded = mask.scatter(1, best[:, None], False)  # the list's own passages except the best
    return functional.cross_entropy(scores.masked_fill(excluded, torch.finfo(scores.dtype).min), best)
