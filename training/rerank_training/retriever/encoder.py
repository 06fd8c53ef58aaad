"""A sentence encoder as a trainable module, its batches, and a ranking loss on the scaled cosines of its vectors."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from rerank.errors import ConfigError
from rerank.models.encoder import Encoder
from rerank.models.encoder_loading import Prompts
from rerank.util.combining import nfc
from rerank_training.lists.training_list import TrainingList
from rerank_training.trainer.checkpoint import add_adapter
from rerank_training.trainer.losses import RankLoss
from rerank_training.trainer.processes import gather_tensors

#: Factor of the cosines in the loss, the inverse of the temperature.
_SCALE = 20.0


class TrainableEncoder(nn.Module):
    """Token ids → unit vectors with gradients, in float32.

    Args:
        encoder: the encoder, of which a copy is trained.
        lora_rank: rank of an adapter on all its linear layers; 0: train all weights.

    Raises:
        ConfigError: the encoder leaves its prompt out of the pooling.
    """

    def __init__(self, encoder: Encoder, lora_rank: int) -> None:
        super().__init__()
        self.prompts = prompts = encoder.prompts
        self.encoder: Any = encoder.copy_model().cpu()  # Trainer moves it, whole or divided
        if any(prompts) and not all(getattr(module, "include_prompt", True) for module in self.encoder):
            raise ConfigError(f"{encoder.id} pools without its prompt, which cannot be trained; use another one")
        self.encoder.prompts |= prompts._asdict()  # they are saved with the encoder
        self._adapters: list[Any] = []  # a list, because the weights of a submodule would be saved twice
        if lora_rank:
            transformer: Any = self.encoder[0].auto_model
            self._adapters = [add_adapter(transformer, lora_rank)]

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """(N, D) unit vectors of (N, T) token ids."""
        features = {"input_ids": input_ids, "attention_mask": attention_mask}
        return nn.functional.normalize(self.encoder(features)["sentence_embedding"], dim=-1)

    def get_input_embeddings(self) -> nn.Module:
        """Called by Trainer for --neftune-noise-alpha."""
        embeddings: nn.Module = self.encoder[0].auto_model.get_input_embeddings()
        return embeddings

    def activation_checkpointing_enable(self, **given: Any) -> None:
        """Called by Trainer for --gradient-checkpointing."""
        self.encoder[0].auto_model.activation_checkpointing_enable(**given)

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        tokenizer: PreTrainedTokenizerBase = self.encoder.tokenizer
        return tokenizer

    @property
    def max_tokens(self) -> int:
        """Largest number of tokens of a text that the encoder reads."""
        return int(self.encoder.max_seq_length)

    def save_pretrained(self, folder: Path) -> None:
        """Writes a sentence-transformers model. The adapter is merged into the weights for good."""
        while self._adapters:
            adapted = self._adapters.pop()
            if any(weight.dtype != torch.float32 for weight in adapted.parameters()):
                adapted.float()  # in bfloat16, small changes would be lost; weights that FSDP divided are in float32
            adapted.merge_and_unload()
        self.encoder.save_pretrained(str(folder), create_model_card=False)


@dataclass(frozen=True)
class RetrieverCollator:
    """Collates lists into `input_ids` and `attention_mask` (B + P, T), `relevance` and `mask` (B, P), and `keys` (P,).

    The first B texts are the queries, the others the P distinct passages of the batch, so that each is encoded once.
    `mask` is True for the passages of a query's list; `relevance` is 0 for all others. `keys` are hashes of doc_ids.

    Args:
        max_tokens: texts, with their prompts, are truncated to this number of tokens.
        prompts: texts in front of queries and of passages.
    """

    tokenizer: PreTrainedTokenizerBase
    max_tokens: int
    prompts: Prompts

    def __call__(self, lists: Sequence[TrainingList]) -> dict[str, Tensor]:
        texts = {passage.doc_id: passage.text for item in lists for passage in item.passages}
        column = {doc_id: number for number, doc_id in enumerate(texts)}
        relevance = torch.zeros(len(lists), len(texts))
        mask = torch.zeros(len(lists), len(texts), dtype=torch.bool)
        for row, item in enumerate(lists):
            columns = [column[passage.doc_id] for passage in item.passages]
            relevance[row, columns] = torch.tensor(item.relevance, dtype=torch.float32)
            mask[row, columns] = True
        tokens = self.tokenizer(
            [
                *(self.prompts.query + nfc(item.query.text) for item in lists),
                *(self.prompts.document + nfc(text) for text in texts.values()),
            ],
            padding=True,
            truncation=True,
            max_length=self.max_tokens,
            return_tensors="pt",
        )
        return {
            "input_ids": tokens["input_ids"],
            "attention_mask": tokens["attention_mask"],
            "relevance": relevance,
            "mask": mask,
            "keys": torch.tensor([_key(doc_id) for doc_id in texts]),
        }


def _key(doc_id: str) -> int:
    """A hash of 63 bits that is the same in every process."""
    return int.from_bytes(hashlib.blake2b(doc_id.encode(), digest_size=8).digest()) >> 1


@dataclass(frozen=True)
class RetrieverObjective:
    """Loss of a batch of `RetrieverCollator`, and its scores.

    Each of several processes computes the loss over the lists of all processes, with the passages of all of them as
    negatives.

    Attributes:
        rank_loss: any of RANK_LOSSES.
    """

    rank_loss: RankLoss

    def terms(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        """(1,) the loss over the batches of all processes, computed in each of them."""
        vectors = model(batch["input_ids"], batch["attention_mask"])
        n = len(batch["relevance"])
        queries, passages, relevance, mask = gather_batches(vectors[:n], vectors[n:], batch)
        scores = _SCALE * queries @ passages.T
        return self.rank_loss(scores, relevance, mask)[None]

    def counts(self, batch: dict[str, Tensor]) -> Tensor:
        """(1,) number of lists over which the loss is a mean."""
        return self.rank_loss.count(batch["relevance"], batch["mask"])[None]

    @torch.no_grad()
    def scores(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        """(B, P) scaled cosines of every query with every passage of the batch."""
        vectors = model(batch["input_ids"], batch["attention_mask"])
        n = len(batch["relevance"])
        scores: Tensor = _SCALE * vectors[:n] @ vectors[n:].T
        return scores


def gather_batches(
    queries: Tensor, passages: Tensor, batch: dict[str, Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Vectors of the queries (B, D) and passages (P, D), relevance and mask (B, P), of the batches of all processes.

    A passage that several processes have gets one column, so that it is not its own negative. The columns are in the
    order of a single process with all lists.
    """
    parts = {name: gather_tensors(batch[name]) for name in ("relevance", "mask", "keys")}
    keys = torch.cat(parts["keys"]).tolist()
    first = {key: row for row, key in reversed(list(enumerate(keys)))}
    rows_of_columns = sorted(first.values())
    column = {keys[row]: number for number, row in enumerate(rows_of_columns)}
    columns = torch.tensor([column[key] for key in keys], device=queries.device)

    def merge(blocks: list[Tensor]) -> Tensor:
        """One (B, P) tensor of the processes' tensors. Each element comes from one of them, so no values are added."""
        rows = torch.block_diag(*(block.float() for block in blocks))
        return rows.new_zeros(len(rows), len(column)).index_add_(1, columns, rows)

    return (
        torch.cat(gather_tensors(queries)),
        torch.cat(gather_tensors(passages))[rows_of_columns],
        merge(parts["relevance"]),
        merge(parts["mask"]).bool(),
    )
