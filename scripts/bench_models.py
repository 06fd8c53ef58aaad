"""What the benchmarks run: a small random Llama over the default encoder's vocabulary, and windows for it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from rerank.collections.requests import read_requests
from rerank.models.encoder import Encoder
from rerank.types import Passage, Query, Window

#: Published windows of 20 passages are about 2,000 wordpieces long (DL 2019, BM25).
_WORDS_OF_A_PASSAGE = (40, 100)


@dataclass(frozen=True)
class Size:
    """Of a Llama: 12.4M parameters beside 32,000 words, unless said otherwise."""

    hidden: int = 384
    mlp: int = 1024
    layers: int = 7
    heads: int = 6
    key_heads: int = 6
    words: int = 32_000


TINY = Size(64, 128, 2, 2, 2)
QWEN3_0_6B = Size(1024, 3072, 28, 16, 8, 151_936)
MISTRAL_7B = Size(4096, 14_336, 32, 32, 8)


def llama(size: Size) -> LlamaForCausalLM:
    """Random, and without an end-of-text token, so that it writes as much as it is let."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=size.words,
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
    return LlamaForCausalLM(config).eval().requires_grad_(False)


def write_checkpoint(folder: Path, encoder: Encoder, size: Size) -> Path:
    """One that both FIRST and PE-Rank read: PE-Rank's published layout is a causal LM with a projector beside it."""
    model = llama(size)
    for key, value in {"encoder_name": encoder.id.name, "projector_type": "linear"}.items():
        setattr(model.config, key, value)
    model.save_pretrained(folder)
    tokenizer = encoder.copy_tokenizer()
    tokenizer.model_max_length = model.config.max_position_embeddings
    tokenizer.save_pretrained(folder)
    projector = {
        "projector.weight": torch.randn(size.hidden, encoder.id.dimension) * 0.5,
        "projector.bias": torch.zeros(size.hidden),
    }
    weights = folder / "model.safetensors"
    save_file(load_file(weights) | projector, weights, metadata={"format": "pt"})
    return folder


def windows(requests: Path | None, n: int, passages: int, encoder: Encoder, words: int | None = None) -> list[Window]:
    """n windows of so many passages, of a request file or made up; every passage with a random unit vector.

    Args:
        words: of each passage; None: as in the file, or of mixed length.
    """
    draw = random.Random(0)
    own = _of_requests(requests, n) if requests else _made_up(draw, n, passages, encoder, words)
    noise = np.random.default_rng(0)
    made = []
    for query, texts in own:
        rows = noise.normal(size=(passages, encoder.id.dimension)).astype(np.float32)
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        shown = zip(texts[:passages], rows, strict=True)
        made.append(Window(query, tuple(Passage(f"d{place}", *pair) for place, pair in enumerate(shown))))
    return made


def _of_requests(path: Path, n: int) -> list[tuple[Query, list[str]]]:
    return [(one.query, [c.text or "" for c in one.candidates]) for one in read_requests(path)[:n]]


def _made_up(
    draw: random.Random, n: int, passages: int, encoder: Encoder, words: int | None
) -> list[tuple[Query, list[str]]]:
    known: Sequence[str] = sorted(
        word for word in encoder.copy_tokenizer().get_vocab() if word.isascii() and word.isalpha()
    )

    def text(length: int) -> str:
        return " ".join(draw.choices(known, k=length))

    return [
        (Query(text(6)), [text(words or draw.randint(*_WORDS_OF_A_PASSAGE)) for _ in range(passages)]) for _ in range(n)
    ]
