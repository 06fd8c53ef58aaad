"""Small random encoders that train and load in little time."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from transformers import BertConfig, BertModel, Qwen3Config, Qwen3Model

from rerank.models.encoder import Encoder
from tests.json_files import change_json
from tests.small_tokenizers import byte_level, template

_WIDTH = 32


def write_small_encoder(folder: Path, like: Encoder, prompts: Mapping[str, object] | None = None) -> Encoder:
    """Writes an encoder of one layer without dropout, which draws no random numbers in training.

    Its layout and its tokenizer are as in the encoder `like`. The folder states `prompts`.
    """
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
    change_json(folder / "1_Pooling" / "config.json", word_embedding_dimension=_WIDTH)
    state_prompts(folder, prompts or {})
    return Encoder(str(folder), "cpu")


def write_qwen_model(folder: Path, padding_side: Literal["left", "right"] = "left", head_dim: int = 8) -> Path:
    """Writes a decoder without a head in the form of E2Rank's folders, which say nothing of pooling and end tokens."""
    tokenizer = byte_level()
    tokenizer.padding_side = padding_side
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=4 * head_dim,
        intermediate_size=8 * head_dim,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=head_dim,
        initializer_range=0.2,
        max_position_embeddings=4096,
    )
    Qwen3Model(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_qwen_encoder(
    folder: Path, padding_side: Literal["left", "right"] = "left", pooling: str = "lasttoken", in_chat: bool = False
) -> Path:
    """Writes an encoder of Qwen3-Embedding's form: a decoder whose tokenizer writes `<|endoftext|>` after a text.

    `in_chat`: texts are turns of a chat, as sentence-transformers 6 writes new folders of models that have a template.
    """
    with TemporaryDirectory() as of_model:
        transformer = Transformer(str(write_qwen_model(Path(of_model), padding_side)), max_seq_length=64)
        backend = transformer.tokenizer.backend_tokenizer
        backend.post_processor = template("$A <|endoftext|>", backend)
        modules = [transformer, Pooling(_WIDTH, pooling_mode=pooling)]
        SentenceTransformer(modules=modules, device="cpu").save_pretrained(str(folder), create_model_card=False)
    if not in_chat:  # as in the folders of published models
        (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 64, "do_lower_case": false}')
    return folder


def state_prompts(folder: Path, prompts: Mapping[str, object]) -> None:
    """Writes the prompts that the folder of an encoder states."""
    change_json(folder / "config_sentence_transformers.json", prompts=dict(prompts))
