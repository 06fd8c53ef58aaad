"""Models and windows of the benchmarks: a random Llama over the default encoder's vocabulary, and random texts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from rerank.models.encoder import Encoder
from rerank.readers.candidates import read_requests
from rerank.types import Passage, Query, Window

#: Shortest and longest random passage in words; 20 of them have about 2,000 tokens, as in published windows of DL 2019.
_PASSAGE_WORDS = (40, 100)


@dataclass(frozen=True)
class LlamaSize:
    """Size of a Llama. By default it has 12.4M parameters without its 32,000 token embeddings."""

    hidden: int = 384
    mlp: int = 1024
    layers: int = 7
    heads: int = 6
    key_heads: int = 6
    vocabulary: int = 32_000


TINY = LlamaSize(64, 128, 2, 2, 2)
QWEN3_0_6B = LlamaSize(1024, 3072, 28, 16, 8, 151_936)
SMOLLM2_135M = LlamaSize(576, 1536, 30, 9, 3, 49_152)
MISTRAL_7B = LlamaSize(4096, 14_336, 32, 32, 8)


def llama(size: LlamaSize, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> LlamaForCausalLM:
    """A random Llama without an end-of-text token, so that it generates as many tokens as it may."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=size.vocabulary,
        hidden_size=size.hidden,
        intermediate_size=size.mlp,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.key_heads,
        max_position_embeddings=8192,
        initializer_range=0.05,
        bos_token_id=None,
        eos_token_id=None,
    )
    with torch.device(device):
        model: LlamaForCausalLM = AutoModelForCausalLM.from_config(config, dtype=dtype)
    return model.eval().requires_grad_(False)


def write_checkpoint(folder: Path, encoder: Encoder, size: LlamaSize) -> Path:
    """Writes a random checkpoint for both FIRST and PE-Rank, and returns its folder.

    It has the published layout of PE-Rank: a causal LM and a projector.
    """
    save_with_projector(llama(size), folder, encoder.id.name, encoder.id.dimension)
    tokenizer = encoder.copy_tokenizer()
    tokenizer.model_max_length = 8192
    tokenizer.save_pretrained(folder)
    return folder


def save_with_projector(
    model: LlamaForCausalLM, folder: Path, encoder_name: str, dimension: int, **options: Any
) -> None:
    """Saves a causal LM with a random projector for the vectors of an encoder, without a tokenizer.

    Args:
        options: of `save_pretrained`.
    """
    for key, value in {"encoder_name": encoder_name, "projector_type": "linear"}.items():
        setattr(model.config, key, value)
    model.save_pretrained(folder, **options)
    projector = {
        "projector.weight": torch.randn(model.config.hidden_size, dimension) * 0.5,
        "projector.bias": torch.zeros(model.config.hidden_size),
    }
    torch.save(projector, folder / "projector.bin")


def make_windows(
    encoder: Encoder, n: int, passages: int, words: int | None = None, requests: Path | None = None
) -> list[Window]:
    """n windows of random passages, each with a random unit vector.

    Args:
        words: number of words of each random passage; None: between 40 and 100.
        requests: RankLLM request file with the queries and passages; None: random words.
    """
    texts = _read_texts(requests, n) if requests else _random_texts(encoder, n, passages, words)
    noise = np.random.default_rng(0)
    windows = []
    for query, passage_texts in texts:
        vectors = noise.normal(size=(passages, encoder.id.dimension)).astype(np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        pairs = zip(passage_texts[:passages], vectors, strict=True)
        given = (Passage(f"d{index}", text, vector=vector) for index, (text, vector) in enumerate(pairs))
        windows.append(Window(query, tuple(given)))
    return windows


def _read_texts(path: Path, n: int) -> list[tuple[Query, list[str]]]:
    return [(request.query, [c.text or "" for c in request.candidates]) for request in read_requests(path)[:n]]


def _random_texts(encoder: Encoder, n: int, passages: int, words: int | None) -> list[tuple[Query, list[str]]]:
    rng = random.Random(0)
    vocabulary: Sequence[str] = sorted(
        word for word in encoder.copy_tokenizer().get_vocab() if word.isascii() and word.isalpha()
    )

    def text(length: int) -> str:
        return " ".join(rng.choices(vocabulary, k=length))

    return [(Query(text(6)), [text(words or rng.randint(*_PASSAGE_WORDS)) for _ in range(passages)]) for _ in range(n)]
