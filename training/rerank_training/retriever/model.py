"""A sentence encoder as a trainable module, optionally with a LoRA adapter that is merged when it is saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from rerank.errors import ConfigError
from rerank.models.encoder import Encoder
from rerank_training.trainer.flags import LORA_ALPHA


class TrainableEncoder(nn.Module):
    """Token ids → unit vectors with gradients, in float32.

    Args:
        encoder: the trained one is a copy of it.
        lora_rank: rank of an adapter on all its linear layers; 0: train all weights.
    """

    def __init__(self, encoder: Encoder, lora_rank: int) -> None:
        super().__init__()
        self.prompts = prompts = encoder.prompts
        self.encoder: Any = encoder.copy_model().cpu()  # Trainer moves it, whole or divided
        if any(prompts) and not all(getattr(module, "include_prompt", True) for module in self.encoder):
            raise ConfigError(f"{encoder.id} pools without its prompt, which cannot be trained; use another one")
        self.encoder.prompts |= prompts._asdict()  # the saved folder states them
        self._adapters: list[Any] = []  # a list, because the weights of a submodule would be saved twice
        if lora_rank:
            lora = LoraConfig(r=lora_rank, lora_alpha=LORA_ALPHA, target_modules="all-linear")
            transformer: Any = self.encoder[0].auto_model
            self._adapters = [get_peft_model(transformer, lora)]  # changes its layers in place

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
        """Number of tokens that the encoder reads of a text."""
        return int(self.encoder.max_seq_length)

    def save_pretrained(self, folder: Path) -> None:
        """Writes a plain sentence-transformers model. Merges the adapter, irreversibly."""
        while self._adapters:
            adapted = self._adapters.pop()
            if any(weight.dtype != torch.float32 for weight in adapted.parameters()):
                adapted.float()  # in bfloat16, small changes would be lost; weights that FSDP divided are in float32
            adapted.merge_and_unload()
        self.encoder.save_pretrained(str(folder), create_model_card=False)
