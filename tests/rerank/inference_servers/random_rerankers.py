"""Writes random rerankers for a real server, and computes their scores in this process.

python -m tests.rerank.inference_servers.random_rerankers DIR
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    Qwen3Config,
)

from tests.cross_encoders import pair_tokenizer
from tests.small_encoder import write_qwen_model
from tests.small_tokenizers import byte_level

BERT, QWEN3, E2RANK = "bert-reranker", "qwen3-reranker", "e2rank"
#: The tokens whose logits Qwen3's score compares, and the form of its prompt.
NO, YES = "N", "Y"
SCORE_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\n' }}{% endfor %}{{ 'relevant:' }}"
)
_SIZES = {"hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 2, "num_attention_heads": 4}


def write_bert(folder: Path) -> None:
    """A BERT with one label, as bge-reranker and the MiniLM cross-encoders are."""
    tokenizer = pair_tokenizer("[CLS] $A [SEP] $B:1 [SEP]:1")
    config = BertConfig(vocab_size=len(tokenizer), num_labels=1, initializer_range=0.2, pad_token_id=0, **_SIZES)
    BertForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def write_qwen3(folder: Path) -> None:
    """A causal LM whose score is P(YES) against NO, as Qwen3-Reranker's is."""
    tokenizer = byte_level()
    sizes = _SIZES | {"num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 4096}
    special = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": None, "bos_token_id": None}
    config = Qwen3Config(vocab_size=len(tokenizer), initializer_range=0.2, **sizes, **special)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "score.jinja").write_text(SCORE_TEMPLATE, encoding="utf-8")


@torch.inference_mode()
def scores_here(folder: Path, query: str, texts: Sequence[str]) -> list[float]:
    """The probabilities that the model in this process gives, one text at a time."""
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    if (folder / "score.jinja").is_file():
        lm = AutoModelForCausalLM.from_pretrained(folder).eval()
        no, yes = tokenizer.convert_tokens_to_ids([NO, YES])
        prompts = [f"query: {query}\ndocument: {text}\nrelevant:" for text in texts]
        logits = [lm(**tokenizer(prompt, return_tensors="pt")).logits[0, -1] for prompt in prompts]
        return [float(torch.sigmoid(logit[yes] - logit[no])) for logit in logits]
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    pairs = [tokenizer(query, text, return_tensors="pt") for text in texts]
    return [float(torch.sigmoid(model(**pair).logits[0, 0])) for pair in pairs]


if __name__ == "__main__":
    torch.manual_seed(7)
    write_bert(Path(sys.argv[1]) / BERT)
    write_qwen3(Path(sys.argv[1]) / QWEN3)
    write_qwen_model(Path(sys.argv[1]) / E2RANK, head_dim=64)  # vLLM computes attention of heads from 32 on a CPU
