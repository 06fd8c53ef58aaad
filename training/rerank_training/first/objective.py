"""Training objective of FIRST: a ranking loss on the identifier logits, the language model's loss, or both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from rerank_training.trainer.losses import RankLoss, language_model_loss
from rerank_training.trainer.processes import over_all_processes

ObjectiveName: TypeAlias = Literal["lm", "rank", "joint"]
Batch: TypeAlias = dict[str, Tensor]


@dataclass(frozen=True)
class FirstObjective:
    """Loss of a batch of `FirstCollator`, and the scores of its passages.

    Attributes:
        objective: `lm`, `rank`, or `joint`: LM + rank_weight * rank (FIRST, arXiv 2406.15657, section 3.3).
        rank_loss: on the identifier logits at the opening bracket, whose next token is the best passage's identifier.
        rank_weight: read by `joint` only.
        identifier_ids: token ids in the order of the passages.
    """

    objective: ObjectiveName
    rank_loss: RankLoss
    rank_weight: float
    identifier_ids: tuple[int, ...]

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The loss of a batch; its mean over the processes is the loss of the windows of all of them."""
        logits = self._forward(model, batch)
        terms = []
        if self.objective != "rank":
            terms.append(language_model_loss(logits, batch["labels"][:, -logits.shape[1] :]))
        if self.objective != "lm":
            weight = self.rank_weight if self.objective == "joint" else 1.0
            terms.append(weight * self._rank(self._scores(logits, batch), batch))
        return torch.stack(terms).sum()

    def scores(self, model: nn.Module, batch: Batch) -> Tensor:
        """(B, N) logits; undefined at the padding of short windows."""
        return self._scores(self._forward(model, batch), batch)

    def _rank(self, scores: Tensor, batch: Batch) -> Tensor:
        return over_all_processes(self.rank_loss)(scores, batch["relevance"], batch["mask"])

    def _forward(self, model: nn.Module, batch: Batch) -> Tensor:
        """(B, K, vocabulary) logits of the last K positions, from before the first bracket."""
        ids, first = batch["input_ids"], int(batch["bracket_index"].min()) - 1
        logits: Tensor = model(
            input_ids=ids,
            use_cache=False,
            # Indices, because a slice is not contiguous: the product would copy the vocabulary's matrix for each row.
            logits_to_keep=torch.arange(first, ids.shape[1], device=ids.device),
        ).logits
        return logits[:, first - ids.shape[1] :]

    def _scores(self, logits: Tensor, batch: Batch) -> Tensor:
        first = batch["input_ids"].shape[1] - logits.shape[1]
        rows = torch.arange(len(logits), device=logits.device)
        at_bracket = logits[rows, batch["bracket_index"] - first]  # (B, vocabulary)
        return at_bracket[:, list(self.identifier_ids[: batch["mask"].shape[1]])]
