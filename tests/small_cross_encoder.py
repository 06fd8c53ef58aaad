"""A small random cross-encoder, which loads in little time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import BertConfig, BertForSequenceClassification

from tests.small_tokenizers import metaspace


def write_cross_encoder(folder: Path) -> tuple[BertForSequenceClassification, Any]:
    """Writes a BERT of one layer with one label, and returns it with its tokenizer."""
    tokenizer = metaspace("instruct")
    tokenizer.pad_token, tokenizer.chat_template = "</s>", None
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = BertConfig(vocab_size=len(tokenizer), num_labels=1, initializer_range=0.5, **sizes)
    model = BertForSequenceClassification(config).eval()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model, tokenizer
