"""Training objective of PE-Rank: ranking losses with and without passage texts, and the KL divergence between both."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from rerank.models.decode_state import DecodeState
from rerank.rankers.pe_decode import dynamic
from rerank_training.pe_rank.model import PEModel
from rerank_training.trainer.losses import RankLoss, kl, stepwise_kl
from rerank_training.trainer.processes import over_all_processes


@dataclass(frozen=True)
class PEObjective:
    """Loss of a batch of `PECollator`, and the scores of its passages (PE-Rank, arXiv 2406.14848, section 3.4).

    Attributes:
        rank_loss: `stepwise_listmle` for dynamic decoding, otherwise any of RANK_LOSSES.
        stepwise: dynamic decoding: each rank has other scores, and the teacher's choices are fed back.
        text_weight: weight of the ranking loss where passages are vectors and text; where they are vectors, it is 1.
        kl_weight: weight of KL(scores with text || scores without). For dynamic decoding it is the paper's: the
            sum over the ranks, with a gradient for both. In one step there is one term, with none for the former.
    """

    rank_loss: RankLoss
    stepwise: bool = False
    text_weight: float = 0.0
    kl_weight: float = 0.0

    @property
    def reads_text(self) -> bool:
        """True if batches need the prompts with text."""
        return self.text_weight > 0 or self.kl_weight > 0

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        """The loss of a batch; its mean over the processes is the loss of the windows of all of them."""
        scores = self._scores(model, batch)
        loss = self._rank(scores, batch)
        if self.reads_text:
            text_scores = self._scores(model, batch, "text_")
            loss = loss + self.text_weight * self._rank(text_scores, batch)
            loss = loss + self.kl_weight * self._divergence(scores, text_scores, batch)
        return loss

    @torch.no_grad()
    def scores(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        """(B, N) scores as in serving, up to a constant; undefined at the padding of short windows."""
        if not self.stepwise:
            return self._scores(model, batch)
        pe_model = cast(PEModel, model)
        embeddings, passages = pe_model.embed(batch["input_ids"], batch["vectors"], batch["mask"], batch["order"])
        sizes = batch["mask"].sum(dim=1).tolist()
        prompts = [row[: last + 1] for row, last in zip(embeddings, batch["last_index"].tolist(), strict=True)]
        window_passages = [row[:size] for row, size in zip(passages, sizes, strict=True)]
        lm = pe_model.transformer
        prefill = partial(DecodeState, lm, lm.config)
        chosen = dynamic(prefill, prompts, window_passages, [0] * len(sizes))
        return pad_sequence([torch.tensor(row) for row, _ in chosen], batch_first=True).to(passages.device)

    def _scores(self, model: nn.Module, batch: dict[str, Tensor], view: str = "") -> Tensor:
        """(B, N) inner products of the passages and the last state; stepwise (B, N, N), row k for rank k."""
        states, passages = model(batch[f"{view}input_ids"], batch["vectors"], batch["mask"], batch["order"])
        steps = torch.arange(passages.shape[1] if self.stepwise else 1, device=states.device)
        indices = (batch[f"{view}last_index"][:, None] + steps).clamp(max=states.shape[1] - 1)  # (B, steps)
        step_states = states.gather(1, indices[..., None].expand(-1, -1, states.shape[2])).float()
        # not matmul, which autocast would compute in bfloat16
        scores = (step_states[:, :, None] * passages.float()[:, None]).sum(dim=-1)
        return scores if self.stepwise else scores[:, 0]

    def _rank(self, scores: Tensor, batch: dict[str, Tensor]) -> Tensor:
        return over_all_processes(self.rank_loss)(scores, batch["relevance"], batch["mask"])

    def _divergence(self, scores: Tensor, teacher: Tensor, batch: dict[str, Tensor]) -> Tensor:
        if not self.stepwise:
            return over_all_processes(kl)(scores, teacher, batch["mask"])
        ranks = batch["order"].argsort(dim=1)
        steps = torch.arange(ranks.shape[1], device=ranks.device)
        left = (ranks[:, None, :] >= steps[:, None]) & batch["mask"][:, None, :]
        return over_all_processes(stepwise_kl)(scores, teacher, left)
