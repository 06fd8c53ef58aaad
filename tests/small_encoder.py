"""A small random encoder with the layout and tokenizer of the default one, which trains and loads in little time."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from transformers import BertConfig, BertModel

from rerank.models.encoder import Encoder

_WIDTH = 32


def write_small_encoder(folder: Path, like: Encoder) -> Encoder:
    """Writes an encoder of one layer without dropout, which draws no random numbers in training."""
    shutil.copytree(like.folder, folder)
    config = BertConfig.from_pretrained(
        folder,
        hidden_size=_WIDTH,
        intermediate_size=2 * _WIDTH,
        num_hidden_layers=1,
        num_attention_heads=2,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        initializer_range=0.2,
    )
    torch.manual_seed(0)
    BertModel(config).save_pretrained(folder)
    pooling = folder / "1_Pooling" / "config.json"
    settings = json.loads(pooling.read_text()) | {"word_embedding_dimension": _WIDTH}
    pooling.write_text(json.dumps(settings))
    return Encoder(str(folder), "cpu")
