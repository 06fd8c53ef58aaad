"""The API of SGLang: its native `/generate` with `token_ids_logprob`, the log-probabilities of named tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rerank.inference_servers.api import LogProbs, ModelCard, Post


class SglangApi:
    """The API of SGLang, as documented for 0.5.

    Args:
        model: the name of the model, or BASE:ADAPTER for a LoRA adapter that the server has loaded.
    """

    most_token_ids = 1_000
    lacks = "this SGLang knows no token_ids_logprob; run SGLang 0.5 or later"

    def __init__(self, model: str) -> None:
        self._adapter = model.partition(":")[2]

    def score(self, prompt: Sequence[int], token_ids: Sequence[int]) -> Post:
        return self._generate(prompt, 1, {"return_logprob": True, "token_ids_logprob": list(token_ids)})

    def log_probs(self, answer: Any) -> LogProbs:
        first_step = answer["meta_info"]["output_token_ids_logprobs"][0]
        return {int(token): float(log_prob) for log_prob, token, *_ in first_step}

    def generate(self, prompt: Sequence[int], max_tokens: int) -> Post:
        return self._generate(prompt, max_tokens, {})

    def text(self, answer: Any) -> str:
        return str(answer["text"])

    def tokenize(self, text: str) -> Post:
        return Post("/tokenize", {"prompt": text, "add_special_tokens": False})

    def tokens(self, answer: Any) -> list[int]:
        return [int(token) for token in answer["tokens"]]

    def models(self, answer: Any) -> list[ModelCard]:
        """An adapter is listed as BASE:ADAPTER, with the length of the model that it adapts."""
        lengths = {card["id"]: card.get("max_model_len") for card in answer["data"]}
        parents = {card["id"]: card.get("parent") for card in answer["data"]}
        return [
            ModelCard(f"{parent}:{name}" if parent else name, lengths[name] or lengths.get(parent))
            for name, parent in parents.items()
        ]

    def _generate(self, prompt: Sequence[int], max_tokens: int, fields: dict[str, Any]) -> Post:
        adapter = {"lora_path": self._adapter} if self._adapter else {}
        sampling = {"temperature": 0, "max_new_tokens": max_tokens}
        return Post("/generate", {"input_ids": list(prompt), "sampling_params": sampling, **adapter, **fields})
