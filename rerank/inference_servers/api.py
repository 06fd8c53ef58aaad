"""Describes the HTTP APIs of inference servers: how to request log-probabilities and texts, and read the answers.

Nothing here sends anything. Prompts are token ids, so that the server reads exactly what was rendered here.

vLLM's completions have `logprob_token_ids`, which are the exact log-probabilities of named tokens. llama.cpp's
`llama-server` has its native `/completion`, with a bias that puts the named tokens on top.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

#: Log-probabilities (natural logarithm) by token id, up to a constant that all tokens of a prompt share.
LogProbs: TypeAlias = dict[int, float]
#: Greedy, whatever sampling the checkpoint's generation_config.json asks for.
_GREEDY = {"temperature": 0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
_ID_PREFIX = "token_id:"
#: Added to the logits of the named tokens, so that they are the most probable ones. It is the same for all, so it
#: changes their log-probabilities by a constant.
_BIAS = 100.0
#: The probability of a token so improbable that float32 rounds it to 0.
_MIN_PROBABILITY = 1e-45


@dataclass(frozen=True, slots=True)
class Post:
    """A POST request: the path of the method, and its JSON body."""

    path: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ModelCard:
    """A model that a server lists, and the most tokens of a prompt and its answer; None if it does not say."""

    name: str
    max_tokens: int | None


class ServerApi(ABC):
    """The API of one kind of server, for one model. The methods that read raise LookupError, TypeError or ValueError.

    Args:
        model: the name of the model at the server.

    Attributes:
        most_token_ids: largest number of tokens whose log-probabilities one request may ask for.
        lacks: what a server lacks that does not answer a request for log-probabilities with all of them.
        has_min_tokens: the server can keep a model from ending too early.
    """

    most_token_ids: ClassVar[int] = 1_000
    lacks: ClassVar[str]
    has_min_tokens: ClassVar[bool] = True

    def __init__(self, model: str) -> None:
        self._model = model

    @abstractmethod
    def score(self, prompt: Sequence[int], token_ids: Sequence[int]) -> Post:
        """Asks for the log-probabilities of these tokens after the prompt."""

    @abstractmethod
    def log_probs(self, answer: Any) -> LogProbs:
        """Returns the log-probabilities in an answer to `score`, possibly of further tokens."""

    @abstractmethod
    def generate(self, prompt: Sequence[int], max_tokens: int, min_tokens: int = 0) -> Post:
        """Asks for the text that the model generates greedily after the prompt.

        Args:
            min_tokens: the model may not end before it wrote as many; 0 where `has_min_tokens` is False.
        """

    @abstractmethod
    def text(self, answer: Any) -> str:
        """Returns the text in an answer to `generate`."""

    def embed(self, inputs: Sequence[Sequence[int]]) -> Post:
        """Asks for the vectors of texts, each given as its tokens."""
        return Post("/v1/embeddings", {"model": self._model, "input": [list(tokens) for tokens in inputs]})

    def vectors(self, answer: Any) -> list[list[float]]:
        """Returns the vectors in an answer to `embed`, in the order of the texts."""
        return [list(map(float, row["embedding"])) for row in sorted(answer["data"], key=lambda row: row["index"])]

    @abstractmethod
    def tokenize(self, text: str) -> Post:
        """Asks for the tokens of a text, without any that the tokenizer adds by itself."""

    def tokens(self, answer: Any) -> list[int]:
        """Returns the tokens in an answer to `tokenize`."""
        return [int(token) for token in answer["tokens"]]

    @abstractmethod
    def models(self, answer: Any) -> list[ModelCard]:
        """Returns the models in an answer to GET /v1/models."""


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

    def generate(self, prompt: Sequence[int], max_tokens: int, min_tokens: int = 0) -> Post:
        fewest = {"min_tokens": min_tokens} if min_tokens else {}
        return self._completion(prompt, {"max_tokens": max_tokens} | fewest)

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
    has_min_tokens = False

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
        return {int(token["id"]): math.log(max(token["prob"], _MIN_PROBABILITY)) for token in most_probable}

    def generate(self, prompt: Sequence[int], max_tokens: int, min_tokens: int = 0) -> Post:
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
