"""Small random causal LMs of public architectures, saved as checkpoints with a small tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    Gemma2Config,
    GemmaConfig,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    PreTrainedTokenizerBase,
    Qwen2Config,
    Qwen3Config,
)

from rerank.checkpoints.manifest import TEMPLATE_FILE, CheckpointManifest, write_manifest
from rerank.prompting.templates import load_template
from rerank.util.files import sha256_of_files

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 4096,
    # Large enough for every position to change the logits by much more than rounding.
    "initializer_range": 0.2,
}
CONFIGS: dict[str, type[PretrainedConfig]] = {
    "llama": LlamaConfig,
    "mistral": MistralConfig,
    "qwen2": Qwen2Config,
    "qwen3": Qwen3Config,
    "gemma": GemmaConfig,
    "gemma2": Gemma2Config,
}
#: Mistral's sliding window, narrower than the prompts.
SLIDING_WINDOW = 64


def write_causal_lm(
    folder: Path, architecture: str, tokenizer: PreTrainedTokenizerBase, seed: int = 0, **sizes: Any
) -> Path:
    """Writes a checkpoint with random weights, which depend on the seed only; sizes in addition to SIZES."""
    torch.manual_seed(seed)
    special = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": None}
    windowed = {"sliding_window": SLIDING_WINDOW} if architecture == "mistral" else {}
    config = CONFIGS[architecture](vocab_size=len(tokenizer), **{**SIZES, **sizes}, **special, **windowed)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    sample = "A word, [A] [10]\n"
    assert AutoTokenizer.from_pretrained(folder)(sample)["input_ids"] == tokenizer(sample)["input_ids"], (
        "the saved tokenizer differs"
    )
    return folder


def finish(folder: Path, ranker: str = "pe-rank", template: str = "pe_rank", **fields: Any) -> None:
    """Writes the template and the manifest into a checkpoint, as training does."""
    loaded = load_template(template)
    (folder / TEMPLATE_FILE).write_bytes(loaded.source)
    manifest = CheckpointManifest(
        ranker=ranker,
        base="tiny",
        base_revision="",
        weights_sha256=sha256_of_files(sorted(folder.glob("*.safetensors"))),
        template_sha256=loaded.sha256,
        window_size=20,
        command="train",
        data={},
        metrics={},
        versions={},
        **fields,
    )
    write_manifest(folder, manifest)
