"""What PE-Rank minimises: a rank loss on vectors, the same on vectors beside text, and how far the first is off."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from rerank.models.kv_cache import GroupedDecodeState
from rerank.rankers.pe_decode import dynamic
from rerank_training.losses import RankLoss, kl
from rerank_training.pe_model import PEModel


@dataclass(frozen=True)
class PEObjective:
    """The loss of a batch of `PECollator`, and its scores (PE-Rank, arXiv 2406.14848, section 3.4).

    Args:
        rank_loss: `stepwise_listmle` where passages are chosen one after the other, otherwise any of RANK_LOSSES.
        stepwise: decoding is dynamic: each place has scores of its own, and the teacher's choices are fed back.
        vectors_weight, text_weight: of the rank loss where passages are vectors, and where they are vectors and text.
        kl_weight: of KL(scores with text || scores without); no gradient flows into the former.
    """

    rank_loss: RankLoss
    stepwise: bool = False
    vectors_weight: float = 1.0
    text_weight: float = 0.0
    kl_weight: float = 0.0

    @property
    def reads_text(self) -> bool:
        """Whether batches must have the second view."""
        return self.text_weight > 0 or self.kl_weight > 0

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        """Scalar."""
        scores = self._scores(model, batch)
        loss = self.vectors_weight * self._rank(scores, batch)
        if self.reads_text:
            with_text = self._scores(model, batch, "text_")
            loss = loss + self.text_weight * self._rank(with_text, batch)
            loss = loss + self.kl_weight * self._divergence(scores, with_text, batch)
        return loss

    @torch.no_grad()
    def scores(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        """(B, N) as serving gives them, up to a constant; those behind short windows mean nothing."""
        if not self.stepwise:
            return self._scores(model, batch)
        own = cast(PEModel, model)
        positions, passages = own.inputs(batch["input_ids"], batch["vectors"], batch["mask"], batch["order"])
        sizes = batch["mask"].sum(dim=1).tolist()
        prompts = [row[: read_at + 1] for row, read_at in zip(positions, batch["read_at"].tolist(), strict=True)]
        own_passages = [row[:size] for row, size in zip(passages, sizes, strict=True)]
        lm = own.transformer
        chosen = dynamic(
            lambda read, _: GroupedDecodeState(lm, lm.config, read), prompts, own_passages, [0] * len(sizes)
        )
        return pad_sequence([torch.tensor(row) for row in chosen], batch_first=True).to(passages.device)

    def _scores(self, model: nn.Module, batch: dict[str, Tensor], view: str = "") -> Tensor:
        """Inner products of passages with the last state (B, N); stepwise (B, N, N), row k at the k-th choice."""
        states, passages = model(batch[f"{view}input_ids"], batch["vectors"], batch["mask"], batch["order"])
        steps = torch.arange(passages.shape[1] if self.stepwise else 1, device=states.device)
        places = (batch[f"{view}read_at"][:, None] + steps).clamp(max=states.shape[1] - 1)  # (B, steps)
        read = states.gather(1, places[..., None].expand(-1, -1, states.shape[2])).float()
        scores = (read[:, :, None] * passages.float()[:, None]).sum(dim=-1)  # not matmul: autocast would round it
        return scores if self.stepwise else scores[:, 0]

    def _rank(self, scores: Tensor, batch: dict[str, Tensor]) -> Tensor:
        return self.rank_loss(scores, batch["relevance"], batch["mask"])

    def _divergence(self, scores: Tensor, teacher: Tensor, batch: dict[str, Tensor]) -> Tensor:
        if not self.stepwise:
            return kl(scores, teacher, batch["mask"])
        ranks = batch["order"].argsort(dim=1)
        steps = torch.arange(ranks.shape[1], device=ranks.device)
        left = (ranks[:, None, :] >= steps[:, None]) & batch["mask"][:, None, :]  # (B, N, N): not yet chosen
        return kl(scores.flatten(0, 1), teacher.flatten(0, 1), left.flatten(0, 1))
