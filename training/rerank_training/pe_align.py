"""PE-Rank's first stage: the projector learns to put a passage's vector where the language model can read it out."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase

from rerank.prompting.vector_prompts import VectorPrompts
from rerank.types import Passage, Query
from rerank_training.losses import IGNORED, language_model
from rerank_training.pe_examples import VectorTable
from rerank_training.pe_model import PEModel

#: The template of the question; the answer is the passage.
ALIGN_TEMPLATE = "pe_align"


@dataclass(frozen=True)
class AlignCollator:
    """Texts → a batch: the prompt with the text's vector, then the text.

    The batch holds `input_ids` (B, T), `labels` (B, T), elsewhere than at the text IGNORED, `vectors` (B, 1, E), and
    what PEModel asks for beside them: `mask` (B, 1), all True, and `order` (B, 1), all 0.
    """

    prompts: VectorPrompts
    vectors: VectorTable
    tokenizer: PreTrainedTokenizerBase

    def __call__(self, texts: Sequence[str]) -> dict[str, Tensor]:
        prompt = list(self.prompts.token_ids(Query(""), [Passage("", "")]))
        answers = [self._answer(text) for text in texts]
        labels = [torch.tensor([IGNORED] * len(prompt) + answer) for answer in answers]
        return {
            "input_ids": pad_sequence([torch.tensor(prompt + answer) for answer in answers], batch_first=True),
            "labels": pad_sequence(labels, batch_first=True, padding_value=IGNORED),
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
    """The language model's loss on the text, given its vector (PE-Rank, section 3.3)."""

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        """Scalar."""
        states, _ = model(batch["input_ids"], batch["vectors"], batch["mask"], batch["order"])
        asked = int((batch["labels"] != IGNORED).int().argmax(dim=1).min()) - 1  # where the first answer is predicted
        plain = cast(PEModel, getattr(model, "module", model))  # many GPUs wrap it
        return language_model(plain.logits(states[:, asked:]), batch["labels"][:, asked:])

    def scores(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        raise NotImplementedError("alignment has no held-out lists; this is a bug")


def passes(texts: Sequence[str], epochs: int, seed: int) -> list[str]:
    """The texts `epochs` times, each time in an order of its own."""
    return [text for epoch in range(epochs) for text in random.Random(f"{seed}/{epoch}").sample(texts, len(texts))]
