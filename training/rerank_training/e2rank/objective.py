"""Training objective of E2Rank (Liu et al., arXiv 2510.22733, stage 2): the query's contrast, and ranks by the list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from rerank.rankers.e2rank import E2RankPrompts
from rerank.types import Window
from rerank_training.lists.training_list import TrainingList
from rerank_training.retriever.model import TrainableEncoder
from rerank_training.retriever.objective import RetrieverCollator, of_all_processes
from rerank_training.trainer.losses import RankLoss
from rerank_training.trainer.processes import gather_tensors

#: Of the plain query's cosines in InfoNCE, and the factor of the list's in the ranking loss, as in the paper.
_TEMPERATURE, _SCALE = 0.03, 10.0


class ListEncoder(TrainableEncoder):
    """Token ids of texts and of prompts → their unit vectors, in one forward pass of the module for all processes."""

    def forward(  # type: ignore[override]
        self, input_ids: Tensor, attention_mask: Tensor, prompt_ids: Tensor, prompt_mask: Tensor
    ) -> Tensor:
        """(N + B, D) of (N, T) ids of texts, and (B, L) ids of prompts."""
        of_texts = super().forward(input_ids, attention_mask)
        return torch.cat([of_texts, super().forward(prompt_ids, prompt_mask)])


@dataclass(frozen=True)
class E2RankCollator:
    """Adds `prompt_ids` and `prompt_mask` (B, L), the prompts of query and list, to a batch of RetrieverCollator."""

    texts: RetrieverCollator
    prompts: E2RankPrompts

    def __call__(self, lists: Sequence[TrainingList]) -> dict[str, Tensor]:
        ids = [self._prompt(item) for item in lists]
        padded = self.texts.tokenizer.pad({"input_ids": ids}, return_tensors="pt")
        return self.texts(lists) | {"prompt_ids": padded["input_ids"], "prompt_mask": padded["attention_mask"]}

    def _prompt(self, item: TrainingList) -> list[int]:
        prepared = self.prompts.prepare(item.query, item.passages)
        return list(self.prompts.encode(Window(prepared.query, prepared.passages)).prompts[0])


@dataclass(frozen=True)
class E2RankObjective:
    """InfoNCE of the plain query's cosines, with the passages of all lists, plus a ranking loss of the list's vector.

    RankNet is a mean over lists here; the publisher's is over all pairs, which is the same for lists of equal size.

    Attributes:
        rank_loss: any of RANK_LOSSES; the paper's is RankNet.
        rank_weight: of the ranking loss.
    """

    rank_loss: RankLoss
    rank_weight: float = 2.0

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        """The loss of the batches of all processes, which each process computes."""
        queries, passages, lists = _vectors(model, batch)
        queries, passages, relevance, mask = of_all_processes(queries, passages, batch)
        of_lists = torch.cat(gather_tensors(lists)) @ passages.T
        contrast = info_nce(queries @ passages.T / _TEMPERATURE, relevance, mask)
        return contrast + self.rank_weight * self.rank_loss(_SCALE * of_lists, relevance, mask)

    @torch.no_grad()
    def scores(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        """(B, P) cosines of every list's vector with every passage of the batch."""
        _, passages, lists = _vectors(model, batch)
        return lists @ passages.T


def _vectors(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """(B, D) of the queries, (P, D) of the passages, (B, D) of the lists."""
    vectors = model(batch["input_ids"], batch["attention_mask"], batch["prompt_ids"], batch["prompt_mask"])
    n = len(batch["relevance"])
    return vectors[:n], vectors[n:-n], vectors[-n:]


def info_nce(scores: Tensor, relevance: Tensor, mask: Tensor) -> Tensor:
    """Mean cross entropy of each list's best passage among the passages of all lists (van den Oord et al. 2018).

    Of equally relevant passages the first counts.

    Args:
        scores: (B, P) of each query with all passages.
        relevance, mask: (B, P); the mask is True for the passages of the list.
    """
    best = relevance.masked_fill(~mask, -torch.inf).argmax(dim=1)
    return functional.cross_entropy(scores.float(), best)
