"""The API of SGLang: its native `/generate` with `token_ids_logprob`, the log-probabilities of named tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rerank.inference_servers.api import LogProbs, ModelCard, Post, ServerApi, cards_with_adapters


class SglangApi(ServerApi):
    """The API of SGLang, as documented for 0.5; no real server was asked yet.

    A LoRA adapter that the server has loaded is named BASE:ADAPTER.
    """

    lacks = "this SGLang knows no token_ids_logprob; run SGLang 0.5 or later"

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

    def models(self, answer: Any) -> list[ModelCard]:
        cards = cards_with_adapters(answer)
        return [ModelCard(f"{parent}:{name}" if parent else name, length) for name, parent, length in cards]

    def _generate(self, prompt: Sequence[int], max_tokens: int, fields: dict[str, Any]) -> Post:
        _, _, name = self._model.partition(":")
        adapter = {"lora_path": name} if name else {}
        sampling = {"temperature": 0, "max_new_tokens": max_tokens}
        return Post("/generate", {"input_ids": list(prompt), "sampling_params": sampling, **adapter, **fields})
