"""Small random SPLADE models, saved as sentence-transformers saves them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
from sentence_transformers import SparseEncoder
from sentence_transformers.base.modules import Router, Transformer
from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding, SpladePooling
from transformers import AutoModelForMaskedLM, BertConfig, DistilBertConfig, PreTrainedTokenizerFast, XLMRobertaConfig

from tests.cross_encoders import SIZES
from tests.small_tokenizers import uncased

_SIZES = SIZES | {"initializer_range": 0.3}
MAX_TOKENS = 64


def tokenizer() -> PreTrainedTokenizerFast:
    made = uncased()
    made.model_max_length = MAX_TOKENS
    return made


def write_masked_lm(folder: Path, architecture: Literal["bert", "distilbert", "xlm-roberta"] = "bert") -> Path:
    """Writes a masked language model with its tokenizer. The weights are always the same."""
    torch.manual_seed(0)
    terms = tokenizer()
    common = {"vocab_size": len(terms), "pad_token_id": terms.pad_token_id}
    config = {
        "bert": lambda: BertConfig(max_position_embeddings=MAX_TOKENS, **common, **_SIZES),
        "xlm-roberta": lambda: XLMRobertaConfig(
            max_position_embeddings=MAX_TOKENS + 1, type_vocab_size=1, **common, **_SIZES
        ),
        "distilbert": lambda: DistilBertConfig(
            dim=32,
            hidden_dim=48,
            n_layers=2,
            n_heads=4,
            max_position_embeddings=MAX_TOKENS,
            initializer_range=0.3,
            **common,
        ),
    }[architecture]()
    model = AutoModelForMaskedLM.from_config(config)
    bias = model.get_output_embeddings().bias
    with torch.no_grad():
        bias.copy_(torch.randn(len(bias)))  # is 0 in a new model, so that a lost bias would not be seen
    model.save_pretrained(folder)
    terms.save_pretrained(folder)
    return folder


def write_sparse_encoder(
    folder: Path,
    architecture: Literal["bert", "distilbert", "xlm-roberta"] = "bert",
    pooling: Literal["max", "sum"] = "max",
    activation: Literal["relu", "log1p_relu"] = "relu",
    query_weights: bool = False,
    prompts: dict[str, str] | None = None,
) -> Path:
    """Writes a SPLADE model; with `query_weights`, queries get their weights from a table."""
    parts = write_masked_lm(folder.with_name(f"{folder.name}-parts"), architecture)
    modules: list[Any] = [Transformer(str(parts), transformer_task="fill-mask"), SpladePooling(pooling, activation)]
    if query_weights:
        terms = tokenizer()
        weights = torch.rand(len(terms), generator=torch.Generator().manual_seed(1))
        modules = [Router.for_query_document([SparseStaticEmbedding(terms, weights)], modules)]
    SparseEncoder(modules=modules, device="cpu", prompts=prompts).save_pretrained(str(folder))
    return folder
