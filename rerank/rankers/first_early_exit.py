"""FIRST with an early exit: scores each passage of a window at its identifier, in the layer of the training's probe.

It needs neither the layers above nor the end of the prompt. How the checkpoint is made: `train-first --probe-weight`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from transformers import PreTrainedModel

from rerank.config import Precision
from rerank.errors import CheckpointError
from rerank.models.early_exit import exit_after
from rerank.models.out_of_memory import translate_out_of_memory
from rerank.prompting.identifiers import IdentifierKind, find_identifiers
from rerank.prompting.templates import Template
from rerank.rankers.first import FirstRanker
from rerank.types import EncodedWindow, Window


class EarlyExitFirstRanker(FirstRanker):
    """Ranks windows by the scores of their passages in an early layer of a causal LM.

    Args:
        layer: the layer that is read, counted from 1; see `rerank.models.early_exit`.
        checkpoint, template, identifiers, order_prior, device, precision, passage_tokens: see FirstRanker.

    Raises:
        CheckpointError: see FirstRanker, or the checkpoint has no such layer.
        ConfigError: see FirstRanker.
    """

    def __init__(
        self,
        checkpoint: Path,
        layer: int,
        template: str | Template,
        identifiers: IdentifierKind = IdentifierKind.LETTERS,
        order_prior: float = 0.0,
        device: str = "auto",
        precision: Precision = "auto",
        passage_tokens: int = 0,
    ) -> None:
        self._layer = layer
        super().__init__(checkpoint, template, identifiers, order_prior, device, precision, passage_tokens)

    def encode(self, window: Window) -> EncodedWindow:
        """Renders the prompt up to the identifier of its last passage."""
        encoded = super().encode(window)
        (prompt,) = encoded.prompts
        prompt = prompt[: self._positions(prompt, len(window.passages))[-1] + 1]
        return replace(encoded, prompts=(prompt,), tokens=len(prompt))

    @translate_out_of_memory()
    def read(self, pieces: Sequence[EncodedWindow]) -> list[torch.Tensor]:
        """Returns the scores of the passages of each window."""
        prompts = [prompt for window in pieces for prompt in window.prompts]
        counts = [len(window.window.passages) for window in pieces]
        scores = self._reader.read_at(
            [torch.tensor(prompt, device=self._device) for prompt in prompts],
            [self._positions(prompt, count) for prompt, count in zip(prompts, counts, strict=True)],
        )
        return list(scores[:, 0].cpu().split(counts))

    def _replace_head(self, model: PreTrainedModel) -> None:
        exit_after(model, self._layer)

    def _positions(self, prompt: Sequence[int], count: int) -> tuple[int, ...]:
        """Returns the positions of the identifiers behind the passages."""
        found = find_identifiers(self._tokenizer, prompt, self.identifiers.token_ids[:count])
        if len(found) < count:
            raise CheckpointError(
                f"identifier {len(found) + 1} of {count} is not a token of its own in the prompt of this tokenizer, so "
                "no score can be read at it; leave early_exit out"
            )
        return found
