"""What the retriever minimises: how far its scores of a query's candidates are from the teacher's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedTokenizerBase

from rerank_training.data import TrainingList
from rerank_training.losses import RankLoss


class RetrieverCollator:
    """Lists → `input_ids` and `attention_mask` (B + P, T), `relevance` and `mask` (B, P).

    The first B texts are the queries, the others the P distinct passages of the batch, so that each is encoded once.
    `mask` says which passages a list has; `relevance` is 0 elsewhere.

    Args:
        max_tokens: where texts are cut.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, max_tokens: int) -> None:
        self._tokenizer = tokenizer
        self._max_tokens = max_tokens

    def __call__(self, lists: Sequence[TrainingList]) -> dict[str, Tensor]:
        texts = {passage.doc_id: passage.text for item in lists for passage in item.passages}
        column = {doc_id: place for place, doc_id in enumerate(texts)}
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
    """The loss of a batch of `RetrieverCollator`, and its scores.

    Args:
        rank_loss: any of RANK_LOSSES.
        scale: what cosines are multiplied by before the loss sees them: one over the temperature.
        in_batch_weight: of the cross entropy of the teacher's best passage among those of the other lists.
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
    """Mean of -log softmax of each list's best passage, among it and the passages that are in other lists only.

    Args:
        scores, relevance, mask: (B, P); of passages that are equally relevant the first is the best.
    """
    best = relevance.masked_fill(~mask, -torch.inf).argmax(dim=1)
    own_but_best = mask.scatter(1, best[:, None], False)
    return functional.cross_entropy(scores.masked_fill(own_but_best, torch.finfo(scores.dtype).min), best)
