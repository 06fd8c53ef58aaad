"""FIRST with block attention: each passage is read once for all windows, and their order does not matter.

The states of a passage are those of the beginning, the passage and what links it to its identifier. A window then costs
its identifiers and the tail, which sees all passages and whose last position has the logits of the identifiers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

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

    The distinct passages of a window get the identifiers in the order of their tokens, so that its scores depend on the
    passages only, and equal ones have equal scores. The states of a passage and of its link are kept apart: those of
    the passage serve all queries, if the beginning does not show the query.

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
        tokens = unread + len(blocks) + len(tail)
        return EncodedWindow(window, (prompt.shared, prompt.link, tail, *prompt.passages), tokens, prompt.truncated)

    @translate_out_of_memory()
    def rank(self, windows: Sequence[EncodedWindow]) -> list[WindowRanking]:
        """Log-probabilities over the passages of each window, in float32; equal passages have equal ones."""
        return [self._rank(encoded) for encoded in windows]

    def _rank(self, encoded: EncodedWindow) -> WindowRanking:
        shared, link, tail, *passages = encoded.prompts
        distinct = sorted(set(passages))
        blocks = [(shared, passage, link) for passage in distinct]
        kept = {block[1] for block in blocks if part_keys(block)[1] in self.states}
        logits = self._blocks.read_window(blocks, self.identifiers.token_ids[: len(blocks)], tail)
        places = {passage: place for place, passage in enumerate(distinct)}
        ranking = self.ranking(encoded.window, logits[None, [places[each] for each in passages]].cpu(), None)
        return replace(ranking, cached_passages=sum(passage in kept for passage in passages))
