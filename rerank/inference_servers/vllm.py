"""The API of vLLM: its completions with `logprob_token_ids`, which are the exact log-probabilities of named tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rerank.inference_servers.api import LogProbs, ModelCard, Post, ServerApi

#: Greedy, whatever sampling the checkpoint's generation_config.json asks for.
_GREEDY = {"temperature": 0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
_ID_PREFIX = "token_id:"


class VllmApi(ServerApi):
    """The API of vLLM (checked with 0.32)."""

    #: The server refuses requests for more.
    most_token_ids = 128
    lacks = "this vLLM knows no logprob_token_ids; run vLLM 0.32 or later"

    def score(self, prompt: Sequence[int], token_ids: Sequence[int]) -> Post:
        named = {"logprobs": 1, "logprob_token_ids": list(token_ids)}
        return self._completion(prompt, {"max_tokens": 1, "return_tokens_as_token_ids": True, **named})

    def log_probs(self, answer: Any) -> LogProbs:
        by_name = answer["choices"][0]["logprobs"]["top_logprobs"][0]
        return {int(name.removeprefix(_ID_PREFIX)): float(log_prob) for name, log_prob in by_name.items()}

    def generate(self, prompt: Sequence[int], max_tokens: int) -> Post:
        return self._completion(prompt, {"max_tokens": max_tokens})

    def text(self, answer: Any) -> str:
        return str(answer["choices"][0]["text"])

    def tokenize(self, text: str) -> Post:
        return Post("/tokenize", {"model": self._model, "prompt": text, "add_special_tokens": False})

    def models(self, answer: Any) -> list[ModelCard]:
        """An adapter has the length of the model that it adapts."""
        lengths = {card["id"]: card.get("max_model_len") for card in answer["data"]}
        return [
            ModelCard(card["id"], lengths[card["id"]] or lengths.get(card.get("parent"))) for card in answer["data"]
        ]

    def _completion(self, prompt: Sequence[int], fields: dict[str, Any]) -> Post:
        return Post("/v1/completions", {"model": self._model, "prompt": list(prompt), **_GREEDY, **fields})
