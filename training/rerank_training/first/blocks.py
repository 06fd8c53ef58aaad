"""Training of FIRST with block attention: examples, batches and scores, by the prompts and the attention that serve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase

from rerank.errors import ConfigError
from rerank.models.blocks import BlockPack, check_block_attention
from rerank.models.last_token import PACKED_ATTENTION
from rerank.prompting.blocks import BlockRenderer, check_has_blocks
from rerank.prompting.identifiers import derive_identifiers
from rerank.types import Window
from rerank_training.first.arguments import FirstArguments
from rerank_training.first.objective import Batch, FirstObjective
from rerank_training.first.prompt import PromptSettings
from rerank_training.lists.training_list import TrainingList
from rerank_training.trainer.data import pad_rows, relevance_and_mask


class BlockCollator:
    """Collates windows into a batch.

    The batch holds `input_ids` (B, T), one window in each row; `lengths` (B, 2 + N), the number of tokens of beginning,
    tail and each block, 0 at padding; and what `relevance_and_mask` returns.

    Raises:
        CheckpointError: the tokenizer has too few identifiers.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, prompt: PromptSettings, context_tokens: int) -> None:
        self._renderer = BlockRenderer(prompt.template, tokenizer, context_tokens, 1, prompt.passage_tokens)
        self.identifiers = derive_identifiers(tokenizer, prompt.identifiers, self._renderer.prompt_end)

    def __call__(self, windows: Sequence[TrainingList]) -> Batch:
        rows, lengths = zip(*map(self._row, windows), strict=True)
        return {
            "input_ids": pad_sequence([torch.tensor(row) for row in rows], batch_first=True),
            "lengths": pad_rows(lengths).long(),
            **relevance_and_mask(windows),
        }

    def _row(self, item: TrainingList) -> tuple[list[int], list[int]]:
        prepared = self._renderer.prepare(item.query, item.passages)
        prompt = self._renderer.blocks(Window(prepared.query, prepared.passages))
        blocks = [
            (*passage, *prompt.link, identifier)
            for passage, identifier in zip(prompt.passages, self.identifiers.token_ids, strict=False)
        ]
        tail = (*prompt.tail, self.identifiers.bracket_id)
        row = [*prompt.shared, *(token for block in blocks for token in block), *tail]
        return row, [len(prompt.shared), len(tail), *map(len, blocks)]


@dataclass(frozen=True)
class BlockObjective(FirstObjective):
    """The ranking loss of a batch of `BlockCollator`, with the probe loss if it has a weight."""

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The loss of a batch; its mean over the processes is the loss of the windows of all of them."""
        scores, probed = self._read(model, batch)
        loss = self._rank(scores, batch)
        return loss + self.probe_weight * self._rank(probed, batch) if self.probe_weight else loss

    def scores(self, model: nn.Module, batch: Batch) -> Tensor:
        """(B, N) logits; 0 at the padding of short windows."""
        return self._read(model, batch)[0]

    def _read(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """(B, N) scores of the passages, and those of the probe."""
        scores, probed = list[Tensor](), list[Tensor]()
        for row, (shared, tail, *blocks) in zip(batch["input_ids"], batch["lengths"].tolist(), strict=True):
            blocks = [length for length in blocks if length]
            pack = BlockPack(shared, blocks, tail, row.device)
            output = model(
                input_ids=row[None, : pack.total_tokens],
                position_ids=pack.position_ids,
                pack=pack,
                use_cache=False,
                logits_to_keep=pack.outputs_at[-1:],
                output_hidden_states=self.probe_weight > 0,
            )
            scores.append(output.logits[0, -1, list(self.identifier_ids[: len(blocks)])])
            if self.probe_weight:
                identifiers = shared - 1 + torch.tensor(blocks).cumsum(0)
                probed.append(self._probe(output.hidden_states[self.probe_layer], identifiers[None])[0])
        return pad_sequence(scores, batch_first=True), pad_sequence(probed or scores, batch_first=True)


def block_collator(
    arguments: FirstArguments, prompt: PromptSettings, model: Any, tokenizer: PreTrainedTokenizerBase, tokens: int
) -> BlockCollator:
    """The collator of a training with block attention, to which it sets the model.

    Raises:
        CheckpointError: the model is none that block attention computes.
        ConfigError: the objective is not the ranking loss alone, or the template has no blocks.
    """
    if arguments.objective != "rank":
        raise ConfigError(f"--objective {arguments.objective} writes an order; attention: block needs --objective rank")
    check_has_blocks(prompt.template)
    check_block_attention(model.config)
    model.set_attn_implementation(PACKED_ATTENTION)
    return BlockCollator(tokenizer, prompt, tokens)
