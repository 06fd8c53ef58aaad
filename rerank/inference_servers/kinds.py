"""The kinds of inference servers.

vLLM's completions have `logprob_token_ids`, which are the exact log-probabilities of named tokens. llama.cpp's
`llama-server` has its native `/completion`, with a bias that puts the named tokens on top.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rerank.inference_servers.api import LogProbs, ModelCard, Post, ServerApi

#: Greedy, whatever sampling the checkpoint's generation_config.json asks for.
_GREEDY = {"temperature": 0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
_ID_PREFIX = "token_id:"
#: Added to the logits of the named tokens, so that they are the most probable ones. It is the same for all, so it
#: changes their log-probabilities by a constant.
_BIAS = 100.0
#: The probability of a token so improbable that float32 rounds it to 0.
_LEAST = 1e-45


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


class LlamaCppApi(ServerApi):
    """The API of llama.cpp (checked with build 11549).

    The server returns the probabilities of the most probable tokens only; the bias makes the named ones so. Asking
    for the whole vocabulary instead gives the same to five digits, and takes megabytes.
    """

    lacks = "this llama-server knows no post_sampling_probs; run a build of 2025 or later"

    def score(self, prompt: Sequence[int], token_ids: Sequence[int]) -> Post:
        named = {
            "n_probs": len(token_ids),
            "post_sampling_probs": True,
            "samplers": ["temperature"],
            "temperature": 1.0,
            "logit_bias": [[token_id, _BIAS] for token_id in token_ids],
        }
        return self._completion(prompt, 1, named)

    def log_probs(self, answer: Any) -> LogProbs:
        most_probable = answer["completion_probabilities"][0]["top_probs"]
        return {int(token["id"]): math.log(max(token["prob"], _LEAST)) for token in most_probable}

    def generate(self, prompt: Sequence[int], max_tokens: int) -> Post:
        return self._completion(prompt, max_tokens, {"temperature": 0.0, "repeat_penalty": 1.0})

    def text(self, answer: Any) -> str:
        return str(answer["content"])

    def tokenize(self, text: str) -> Post:
        return Post("/tokenize", {"content": text, "add_special": False})

    def models(self, answer: Any) -> list[ModelCard]:
        """`n_ctx` is the context of one slot, which builds before 2026 do not say."""
        return [ModelCard(card["id"], (card.get("meta") or {}).get("n_ctx")) for card in answer["data"]]

    def _completion(self, prompt: Sequence[int], n_predict: int, fields: dict[str, Any]) -> Post:
        body = {"model": self._model, "prompt": list(prompt), "n_predict": n_predict, "cache_prompt": True}
        return Post("/completion", body | fields)


#: The kinds by the names that `served_by.kind` takes.
APIS: dict[str, type[ServerApi]] = {"vllm": VllmApi, "llama-cpp": LlamaCppApi}
