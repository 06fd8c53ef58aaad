"""llama-nemotron-rerank by NVIDIA: Llama without a causal mask, and a linear layer over the mean of all states.

The publisher's folders name remote code for it. This is our implementation, with modules named as in the published
weights. It was compared with the formula, not with the published weights.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForSequenceClassification, LlamaConfig, LlamaModel, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput


class LlamaBidirectionalConfig(LlamaConfig):
    """The settings of Llama; `pooling` says which states are scored, and the score is divided by `temperature`."""

    model_type = "llama_bidirec"
    pooling: str = "avg"
    temperature: float = 1.0


class LlamaBidirectionalForSequenceClassification(PreTrainedModel):
    """(B, T) token ids, padded at either end → (B, labels) scores.

    Raises:
        ValueError: the settings state another pooling than the mean ("avg").
    """

    config_class = LlamaBidirectionalConfig
    base_model_prefix = "model"
    _supports_sdpa = True

    def __init__(self, config: LlamaBidirectionalConfig) -> None:
        super().__init__(config)
        if config.pooling != "avg":
            raise ValueError(f"pooling {config.pooling!r} is not supported; only avg is")
        config.is_causal = False
        self.model = LlamaModel(config)
        self.score = nn.Linear(config.hidden_size, cast(int, config.num_labels), bias=False)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.model.embed_tokens

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **_: Any) -> SequenceClassifierOutput:
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        states = self.model(input_ids, attention_mask=mask, position_ids=positions, use_cache=False).last_hidden_state
        read = mask[..., None].to(states.dtype)  # (B, T, 1)
        mean = (states * read).sum(1) / read.sum(1)
        return SequenceClassifierOutput(logits=self.score(mean) / self.config.temperature)


AutoConfig.register(LlamaBidirectionalConfig.model_type, LlamaBidirectionalConfig)
AutoModelForSequenceClassification.register(LlamaBidirectionalConfig, LlamaBidirectionalForSequenceClassification)
