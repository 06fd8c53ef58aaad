"""JinaBERT of jina-embeddings-v2 (Günther et al., arXiv 2310.19923) and jina-reranker-v1: BERT, ALiBi, gated MLPs.

The publisher's folders name remote code for it in config.json, and `model_type` "bert". This is our implementation, so
that no code from a checkpoint runs. Modules are named as in the published weights. The implementation was compared with
the formula of the paper and with folders of that layout, not with the published weights themselves.
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, BertConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, SequenceClassifierOutput

_MODEL_TYPE = "jina_bert_v2"


class JinaBertConfig(BertConfig):
    """The settings of BERT. The model adds biases for positions to the attention, and gates its MLPs by GELU."""

    model_type = _MODEL_TYPE


class _Embeddings(nn.Module):
    def __init__(self, config: JinaBertConfig) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, input_ids: Tensor, token_type_ids: Tensor) -> Tensor:
        return self.LayerNorm(self.word_embeddings(input_ids) + self.token_type_embeddings(token_type_ids))


class _SelfAttention(nn.Module):
    def __init__(self, config: JinaBertConfig) -> None:
        super().__init__()
        self.heads = config.num_attention_heads
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(config.hidden_size, config.hidden_size)
        self.value = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, states: Tensor, bias: Tensor) -> Tensor:
        """(B, T, D) states and (B, H, T, T) biases of the attention → (B, T, D)."""
        query, key, value = (
            project(states).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=bias)
        return mixed.transpose(1, 2).flatten(2)


class _AttentionOutput(nn.Module):
    def __init__(self, config: JinaBertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)


class _GatedMLP(nn.Module):
    def __init__(self, config: JinaBertConfig) -> None:
        super().__init__()
        self.gated_layers = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.wo = nn.Linear(config.intermediate_size, config.hidden_size)
        self.layernorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, states: Tensor) -> Tensor:
        """LayerNorm(x + W (gelu(g) * u)) with g and u the halves of the gated layer."""
        gate, up = self.gated_layers(states).chunk(2, dim=-1)
        return self.layernorm(states + self.wo(nn.functional.gelu(gate) * up))


class _Layer(nn.Module):
    def __init__(self, config: JinaBertConfig) -> None:
        super().__init__()
        self.attention = nn.ModuleDict({"self": _SelfAttention(config), "output": _AttentionOutput(config)})
        self.mlp = _GatedMLP(config)

    def forward(self, states: Tensor, bias: Tensor) -> Tensor:
        output = cast(_AttentionOutput, self.attention["output"])
        mixed = output.dense(self.attention["self"](states, bias))
        return self.mlp(output.LayerNorm(states + mixed))


class JinaBertModel(PreTrainedModel):
    """(B, T) token ids → (B, T, D) states of the tokens."""

    config_class = JinaBertConfig
    base_model_prefix = "bert"

    def __init__(self, config: JinaBertConfig, has_pooler: bool = False, **_: Any) -> None:
        super().__init__(config)
        self.embeddings = _Embeddings(config)
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList(_Layer(config) for _ in range(config.num_hidden_layers))})
        if has_pooler:
            self.pooler = nn.ModuleDict({"dense": nn.Linear(config.hidden_size, config.hidden_size)})
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings.word_embeddings

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None, **_: Any
    ) -> BaseModelOutput:
        states = self.embeddings(input_ids, torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids)
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        slopes = torch.tensor(alibi_slopes(self.config.num_attention_heads), device=states.device, dtype=states.dtype)
        bias = -slopes[:, None, None] * (positions[:, None] - positions).abs()  # (H, T, T)
        hidden = torch.finfo(states.dtype).min
        bias = bias[None].masked_fill(mask[:, None, None, :] == 0, hidden)  # (B, H, T, T)
        for layer in cast(nn.ModuleList, self.encoder["layer"]):
            states = layer(states, bias)
        return BaseModelOutput(last_hidden_state=states)


class JinaBertForSequenceClassification(PreTrainedModel):
    """(B, T) token ids → (B, labels) scores by the state of the first token, as in jina-reranker-v1."""

    config_class = JinaBertConfig
    base_model_prefix = "bert"

    def __init__(self, config: JinaBertConfig) -> None:
        super().__init__(config)
        self.bert = JinaBertModel(config, has_pooler=True)
        self.classifier = nn.Linear(config.hidden_size, cast(int, config.num_labels))
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.bert.get_input_embeddings()

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None, **_: Any
    ) -> SequenceClassifierOutput:
        states = self.bert(input_ids, attention_mask, token_type_ids).last_hidden_state
        pooled = self.bert.pooler["dense"](states[:, 0]).tanh()
        return SequenceClassifierOutput(logits=self.classifier(pooled))


def alibi_slopes(heads: int) -> list[float]:
    """Returns the slopes of ALiBi (Press et al., ICLR 2022): 2^(-8 k / n) for a power of two n.

    For another number of heads: all slopes for the power of two below it, then every other slope for the power above.
    """
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * k / power) for k in range(1, power + 1)]
    return slopes + [2 ** (-4 * k / power) for k in range(1, 2 * (heads - power), 2)]


AutoConfig.register(_MODEL_TYPE, JinaBertConfig)
AutoModel.register(JinaBertConfig, JinaBertModel)
AutoModelForSequenceClassification.register(JinaBertConfig, JinaBertForSequenceClassification)
