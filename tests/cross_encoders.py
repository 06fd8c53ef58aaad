"""Small random cross-encoders of public architectures, saved as sentence-transformers saves them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from sentence_transformers import CrossEncoder
from sentence_transformers.base.modules import Transformer
from sentence_transformers.cross_encoder.modules import LogitScore
from tokenizers import processors
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    BertConfig,
    ModernBertConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
    XLMRobertaConfig,
)

from tests.small_tokenizers import byte_level, uncased

#: As rerankers on causal LMs have it: an instruction in the system message, a query and a document.
PAIR_CHAT = (
    "<|im_start|>system\nJudge.<|im_end|>\n<|im_start|>user\n"
    "<I>: {{ messages | selectattr('role', 'eq', 'system') | map(attribute='content') | first | default('Find.') }}\n"
    "<Q>: {{ messages | selectattr('role', 'eq', 'query') | map(attribute='content') | first }}\n"
    "<D>: {{ messages | selectattr('role', 'eq', 'document') | map(attribute='content') | first }}<|im_end|>\n"
    "<|im_start|>assistant\n"
)
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    # Large enough for every token to change the score by much more than rounding.
    "initializer_range": 0.2,
}
MAX_TOKENS = 128


def pair_tokenizer(pair: str, **options: Any) -> PreTrainedTokenizerFast:
    """The small tokenizer of BERT for pairs of this form, such as "[CLS] $A [SEP] $B:1 [SEP]:1"."""
    tokenizer = uncased()
    ids = [(token, tokenizer.convert_tokens_to_ids(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair=pair, special_tokens=ids
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend_tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_max_length=MAX_TOKENS,
        **options,
    )


def write_cross_encoder(folder: Path, architecture: str, activation: torch.nn.Module | None = None) -> Path:
    """Writes a checkpoint: "bert", "modernbert", "xlm-roberta" or "qwen3". The weights are always the same."""
    torch.manual_seed(0)
    parts = folder.with_name(f"{folder.name}-parts")
    if architecture == "qwen3":
        _write_qwen3(parts)
        transformer = Transformer(str(parts), transformer_task="text-generation")
        answers = [transformer.tokenizer.convert_tokens_to_ids(letter) for letter in ("Y", "N")]
        model = CrossEncoder(modules=[transformer, LogitScore(*answers)], activation_fn=activation, device="cpu")
    else:
        _write_classifier(parts, architecture)
        model = CrossEncoder(str(parts), activation_fn=activation, device="cpu")
    model.save_pretrained(str(folder))
    return folder


def _write_classifier(folder: Path, architecture: str) -> None:
    names = ["input_ids", "attention_mask"]
    if architecture == "bert":
        tokenizer = pair_tokenizer("[CLS] $A [SEP] $B:1 [SEP]:1", model_input_names=[*names, "token_type_ids"])
    elif architecture == "xlm-roberta":
        tokenizer = pair_tokenizer("[CLS] $A [SEP] [SEP] $B [SEP]", model_input_names=names)
    else:
        tokenizer = pair_tokenizer("[CLS] $A [SEP] $B [SEP]", model_input_names=names)
    common = {**SIZES, "vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id, "num_labels": 1}
    config = {
        "bert": lambda: BertConfig(max_position_embeddings=MAX_TOKENS, **common),
        "xlm-roberta": lambda: XLMRobertaConfig(
            max_position_embeddings=MAX_TOKENS + 1,
            type_vocab_size=1,
            **common,  # the first one is of padding
        ),
        "modernbert": lambda: ModernBertConfig(
            max_position_embeddings=MAX_TOKENS,
            local_attention=8,
            global_attn_every_n_layers=2,
            cls_token_id=tokenizer.cls_token_id,
            sep_token_id=tokenizer.sep_token_id,
            bos_token_id=tokenizer.cls_token_id,
            eos_token_id=tokenizer.sep_token_id,
            **common,
        ),
    }[architecture]()
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _write_qwen3(folder: Path) -> None:
    tokenizer = byte_level()
    tokenizer.chat_template = PAIR_CHAT
    tokenizer.model_max_length = 4 * MAX_TOKENS
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=4 * MAX_TOKENS,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **SIZES,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def drop_modules(folder: Path) -> None:
    """Removes what sentence-transformers writes beside a model of transformers."""
    for name in ("modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"):
        (folder / name).unlink()
