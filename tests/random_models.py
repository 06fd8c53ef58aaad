"""Small random causal transformers of many architectures."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BloomConfig,
    FalconConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GemmaConfig,
    GPT2Config,
    GPTJConfig,
    GptOssConfig,
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    OPTConfig,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    RobertaConfig,
)

from rerank.models.last_token import IdentifierHead

VOCABULARY = 200
IDENTIFIERS = [3, 17, 40, 41, 99, 150]
#: Longer than the sliding windows, shorter, as long, and one position.
LENGTHS = (37, 12, 16, 1, 64)

_SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
}
_GROUPED_QUERIES = _SHAPE | {"num_key_value_heads": 2, "head_dim": 16}
_WINDOWED = _GROUPED_QUERIES | {"sliding_window": 16}
_GPT: dict[str, Any] = {"vocab_size": VOCABULARY, "n_embd": 64, "n_layer": 3, "n_head": 4, "initializer_range": 0.2}
_OPT = _SHAPE | {"ffn_dim": 96, "word_embed_proj_dim": 64, "init_std": 0.2}
_ALIBI: dict[str, Any] = {"vocab_size": VOCABULARY, "hidden_size": 64, "initializer_range": 0.2}
_DYNAMIC_ROPE = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}

DECODERS: dict[str, PretrainedConfig] = {
    "llama": LlamaConfig(**_GROUPED_QUERIES),
    "mistral": MistralConfig(**_WINDOWED),
    "qwen2": Qwen2Config(**_GROUPED_QUERIES),
    "qwen2 with a window in one layer": Qwen2Config(**_WINDOWED, use_sliding_window=True, max_window_layers=2),
    "qwen3": Qwen3Config(**_GROUPED_QUERIES),
    "gemma": GemmaConfig(**_GROUPED_QUERIES),
    "gemma3": Gemma3TextConfig(**_WINDOWED),
    "granite": GraniteConfig(**_GROUPED_QUERIES, residual_multiplier=0.3, logits_scaling=2.0),
    "bert": BertConfig(**_SHAPE, is_decoder=True),
    "opt": OPTConfig(**_OPT),
    "gpt2": GPT2Config(**_GPT),
    "gemma2": Gemma2Config(**_WINDOWED, attn_logit_softcapping=2.0, final_logit_softcapping=5.0),
    "gpt-oss": GptOssConfig(**_WINDOWED, num_local_experts=4, num_experts_per_tok=2),
    "bloom": BloomConfig(**_ALIBI, n_layer=3, n_head=4),
    "falcon": FalconConfig(**_ALIBI, num_hidden_layers=3, num_attention_heads=4),
    "gpt-j": GPTJConfig(**_GPT, rotary_dim=8),
    "roberta": RobertaConfig(**_SHAPE, is_decoder=True),
    "llama with dynamic positions": LlamaConfig(**_GROUPED_QUERIES, rope_parameters=_DYNAMIC_ROPE),
}


#: Operators that give Python a number from the device. A CUDA graph cannot contain them.
READ_BACK = {
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.is_nonzero.default,
    torch.ops.aten.nonzero.default,
}


class Operators(TorchDispatchMode):
    """Keeps the operators that run in it."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[object] = set()

    def __torch_dispatch__(self, operator: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.add(operator)
        return operator(*args, **(kwargs or {}))


def random_model(config: PretrainedConfig, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """A causal LM with the head of IDENTIFIERS; the same weights in every call."""
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(copy.deepcopy(config), dtype=dtype)
    model.set_output_embeddings(IdentifierHead(model.get_output_embeddings(), IDENTIFIERS))
    return model.eval().requires_grad_(False)


def random_sequences() -> list[torch.Tensor]:
    """Token ids of LENGTHS; the same in every call."""
    return [torch.randint(VOCABULARY, (n,), generator=torch.Generator().manual_seed(n)) for n in LENGTHS]


@torch.inference_mode()
def last_logits(model: PreTrainedModel, sequences: list[torch.Tensor]) -> torch.Tensor:
    """(B, identifiers) logits at the last positions, by one plain forward per sequence of an unmodified model."""
    return torch.stack([model(input_ids=ids[None], use_cache=False).logits[0, -1] for ids in sequences])
