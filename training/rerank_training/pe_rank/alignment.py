"""Alignment, the first training stage of PE-Rank: the projector learns vectors that the model can restore texts from.

The language model reads one projected vector and is trained to write the passage's text (PE-Rank, section 3.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase

from rerank.prompting.vector_prompts import VectorPrompts
from rerank.types import Passage, Query
from rerank_training.lists.vector_table import VectorTable
from rerank_training.pe_rank.model import PEModel
from rerank_training.trainer.losses import IGNORE_INDEX, language_model_loss

#: Template of the prompt; the answer is the text of the passage.
ALIGN_TEMPLATE = "pe_align"


@dataclass(frozen=True)
class AlignCollator:
    """Collates texts into a batch: for each text, the prompt with its vector, followed by the text.

    The batch holds `input_ids` (B, T); `labels` (B, T), the text's tokens, and IGNORE_INDEX elsewhere; `vectors`
    (B, 1, E); and the other arguments of PEModel: `mask` (B, 1), all True, and `order` (B, 1), all 0.
    """

    prompts: VectorPrompts
    vectors: VectorTable
    tokenizer: PreTrainedTokenizerBase

    def __call__(self, texts: Sequence[str]) -> dict[str, Tensor]:
        prompt = list(self.prompts.token_ids(Query(""), [Passage("", "")]))
        answers = [self._answer(text) for text in texts]
        labels = [torch.tensor([IGNORE_INDEX] * len(prompt) + answer) for answer in answers]
        return {
            "input_ids": pad_sequence([torch.tensor(prompt + answer) for answer in answers], batch_first=True),
            "labels": pad_sequence(labels, batch_first=True, padding_value=IGNORE_INDEX),
            "vectors": torch.from_numpy(self.vectors(texts))[:, None],
            "mask": torch.ones(len(texts), 1, dtype=torch.bool),
            "order": torch.zeros(len(texts), 1, dtype=torch.long),
        }

    def _answer(self, text: str) -> list[int]:
        shown = self.prompts.shown_text(Passage("", text))
        ids: list[int] = self.tokenizer(shown, add_special_tokens=False)["input_ids"]
        end = self.tokenizer.eos_token_id
        return ids if end is None else [*ids, int(end)]


class AlignObjective:
    """The language model's loss on the text, given its vector."""

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        """The mean cross entropy of the texts' tokens."""
        states, _ = model(batch["input_ids"], batch["vectors"], batch["mask"], batch["order"])
        labelled = batch["labels"] != IGNORE_INDEX
        first = int(labelled.int().argmax(dim=1).min()) - 1  # the position that predicts the first answer
        pe_model = cast(PEModel, getattr(model, "module", model))  # wrapped when training on several GPUs
        return language_model_loss(pe_model.logits(states[:, first:]), batch["labels"][:, first:])

    def scores(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        raise NotImplementedError("alignment has no held-out lists; this is a bug")
