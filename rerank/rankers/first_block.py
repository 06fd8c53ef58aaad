"""FIRST with block attention: each passage is read once for all windows, and their order does not matter.

The states of a passage are those of the beginning, the passage and what links it to its identifier. A window then costs
its identifiers and the tail, which sees all passages and whose last position has the logits of the identifiers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import torch

from rerank.config import Precision
from rerank.errors import CheckpointError, ConfigError
from rerank.models.blocks import BlockReader, check_block_attention, part_keys
from rerank.models.last_token import translate_out_of_memory
from rerank.prompting.blocks import BlockRenderer, check_has_blocks
from rerank.prompting.identifiers import IdentifierKind
from rerank.prompting.templates import Template, load_template
from rerank.rankers.first import FirstRanker, FirstScoring
from rerank.types import EncodedWindow, Window, WindowRanking


class BlockFirstRanker(FirstRanker):
    """Ranks windows by the identifier logits of a causal LM whose passages do not see each other.

    The identifiers are given out in the order of the passages' tokens, so that the scores of a window depend on the set
    of its passages only. Two parts of a block are kept apart: the passage with the beginning, whose states serve all
    queries if the beginning does not show the query, and the link.

    Args:
        checkpoint, template, identifiers, scoring, device, precision, passage_tokens: see FirstRanker.
        state_bytes: bound on the memory for states of passages; 0: each window reads all of its own.

    Attributes:
        states: see StateKeeper.

    Raises:
        CheckpointError: see FirstRanker, or the model has no rotary positions, or layers that do not see all.
        ConfigError: the template has no blocks, or a setting depends on the order of the passages.
    """

    renderer_class = BlockRenderer

    def __init__(
        self,
        checkpoint: Path,
        template: str | Template,
        identifiers: IdentifierKind = IdentifierKind.LETTERS,
        scoring: FirstScoring | None = None,
        device: str = "auto",
        precision: Precision = "auto",
        passage_tokens: int = 0,
        state_bytes: int = 0,
    ) -> None:
        check_has_blocks(loaded := load_template(template))
        scoring = scoring or FirstScoring()
        if scoring.permutations != 1 or scoring.calibration != "none":
            raise ConfigError(
                "with attention: block no order of the passages is read; leave permutations and calibration out"
            )
        super().__init__(checkpoint, loaded, identifiers, scoring, device, precision, passage_tokens)
        check_block_attention(self._model_config)
        if self._reader.batching != "packed":
            raise CheckpointError(f"{checkpoint} cannot be packed, which attention: block needs; use attention: causal")
        self._blocks = BlockReader(self._reader, self._device, state_bytes)
        self.states = self._blocks.states

    def encode(self, window: Window) -> EncodedWindow:
        """The parts of the window: beginning, link, tail, and each passage. Its tokens are those to be read."""
        prompt = cast(BlockRenderer, self.renderer).blocks(window)
        tail = (*prompt.tail, self.identifiers.bracket_id)
        blocks = {(prompt.shared, passage, prompt.link) for passage in prompt.passages}
        parts = {key: len(part) for block in blocks for key, part in zip(part_keys(block), block, strict=True)}
        unread = sum(tokens for key, tokens in parts.items() if key not in self.states)
        tokens = unread + len(prompt.passages) + len(tail)
        return EncodedWindow(window, (prompt.shared, prompt.link, tail, *prompt.passages), tokens, prompt.truncated)

    @translate_out_of_memory()
    def rank(self, windows: Sequence[EncodedWindow]) -> list[WindowRanking]:
        """Log-probabilities over the n identifiers of each window, in float32."""
        return [self._rank(encoded) for encoded in windows]

    def _rank(self, encoded: EncodedWindow) -> WindowRanking:
        shared, link, tail, *passages = encoded.prompts
        blocks = [(shared, passage, link) for passage in passages]
        cached = sum(part_keys(block)[1] in self.states for block in blocks)
        order = sorted(range(len(passages)), key=passages.__getitem__)
        logits = self._blocks.read_window(
            [blocks[place] for place in order], self.identifiers.token_ids[: len(order)], tail
        )
        in_window = torch.empty(len(order)).index_copy_(0, torch.tensor(order), logits[: len(order)].cpu())
        return replace(self.ranking(encoded.window, in_window[None], None), cached_passages=cached)
