"""A T5 model with random weights."""

from pathlib import Path
from typing import Any

import torch
from tokenizers import processors
from transformers import AutoModelForSeq2SeqLM, PreTrainedTokenizerFast, T5Config

from tests.small_tokenizers import CHATML_CHAT, add_special, byte_level_bpe, wrapped

#: Answers of published models, which are one token each.
WORDS = ("yes", "no", "Yes", "No", "▁true", "▁false", "<extra_id_10>")


def tokenizer() -> PreTrainedTokenizerFast:
    """Qwen's form, with Gemma's special tokens and T5's answers."""
    backend = byte_level_bpe(digits=r"\p{N}", whole_words=WORDS)
    add_special(backend, ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<bos>"])
    tokens = {"bos_token": "<bos>", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    return wrapped(backend, CHATML_CHAT, **tokens, extra_special_tokens=["<|im_start|>"])


def write_t5(folder: Path) -> Path:
    split = tokenizer()
    end = split.eos_token
    split.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {end}", special_tokens=[(end, split.convert_tokens_to_ids(end))]
    )
    split.model_max_length = 512
    split.save_pretrained(folder)
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
    config = T5Config(
        vocab_size=len(split), decoder_start_token_id=0, pad_token_id=0, eos_token_id=1, initializer_factor=3.0, **sizes
    )
    AutoModelForSeq2SeqLM.from_config(config).save_pretrained(folder)
    return folder
