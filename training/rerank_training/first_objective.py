"""What FIRST minimises: a rank loss on the identifier logits at one position, the language model's loss, or both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from rerank_training.losses import RankLoss, language_model

Objective: TypeAlias = Literal["lm", "rank", "joint"]
Batch: TypeAlias = dict[str, Tensor]


@dataclass(frozen=True)
class FirstObjective:
    """The loss of a batch, and its scores.

    Args:
        objective: `lm`, `rank`, or `joint`, which is LM + rank_weight * rank (FIRST, arXiv 2406.15657, section 3.3).
        rank_loss: on the identifier logits at the position whose next token is the identifier.
        identifier_ids: token ids in the order of the passages.
        probe_weight: the weight of the same rank loss on an early reading of relevance, see `_probe`; 0: none.
        probe_layer: behind which layer (1-based) the probe reads.
    """

    objective: Objective
    rank_loss: RankLoss
    rank_weight: float
    identifier_ids: tuple[int, ...]
    probe_weight: float = 0.0
    probe_layer: int = 0

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Scalar."""
        output, logits = self._forward(model, batch)
        terms = []
        if self.objective != "rank":
            terms.append(language_model(logits, batch["labels"][:, -logits.shape[1] :]))
        if self.objective != "lm":
            scores = self._scores(logits, batch)
            weight = self.rank_weight if self.objective == "joint" else 1.0
            terms.append(weight * self.rank_loss(scores, batch["relevance"], batch["mask"]))
        if self.probe_weight:
            probe = self._probe(output.hidden_states[self.probe_layer], batch["identifier_at"])
            terms.append(self.probe_weight * self.rank_loss(probe, batch["relevance"], batch["mask"]))
        return torch.stack(terms).sum()

    def scores(self, model: nn.Module, batch: Batch) -> Tensor:
        """(B, N) logits; those behind short windows mean nothing."""
        _, logits = self._forward(model, batch)
        return self._scores(logits, batch)

    def _forward(self, model: nn.Module, batch: Batch) -> tuple[Any, Tensor]:
        """The model's output, and (B, K, vocabulary) logits of the last K positions: from the first bracket on."""
        keep = batch["input_ids"].shape[1] - int(batch["read_at"].min())
        output = model(
            input_ids=batch["input_ids"],
            use_cache=False,
            logits_to_keep=keep,
            output_hidden_states=self.probe_weight > 0,
        )
        return output, output.logits[:, -keep:]

    def _scores(self, logits: Tensor, batch: Batch) -> Tensor:
        first = batch["input_ids"].shape[1] - logits.shape[1]
        rows = torch.arange(len(logits), device=logits.device)
        at_bracket = logits[rows, batch["read_at"] - first]  # (B, vocabulary)
        return at_bracket[:, list(self.identifier_ids[: batch["mask"].shape[1]])]

    def _probe(self, hidden: Tensor, places: Tensor) -> Tensor:
        """(B, N): how far the state of each identifier points into one fixed direction.

        The last position can only pass on what earlier ones know, and learns that late: on windows of 4 x 20 tokens a
        small model needs 250 steps. Told at each identifier how relevant its passage is, it needs 50. The direction is
        no parameter, so that nothing needs to be kept, and the served model is a plain one.
        """
        width = hidden.shape[-1]
        direction = torch.randn(width, generator=torch.Generator().manual_seed(0)) / width**0.5
        states = hidden.gather(1, places[:, :, None].expand(-1, -1, width))  # (B, N, hidden)
        return states @ direction.to(states)
