"""Describes the HTTP APIs of inference servers: how to ask for log-probabilities and texts, and read the answers.

Nothing here sends anything. Prompts are token ids, so that the server reads exactly what was rendered here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

#: Log-probabilities (natural logarithm) by token id, up to a constant that all tokens of a prompt share.
LogProbs: TypeAlias = dict[int, float]


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
        most_token_ids: the most tokens whose log-probabilities one request may ask for.
        lacks: what a server lacks that does not answer a request for log-probabilities with all of them.
    """

    most_token_ids: ClassVar[int] = 1_000
    lacks: ClassVar[str]

    def __init__(self, model: str) -> None:
        self._model = model

    @abstractmethod
    def score(self, prompt: Sequence[int], token_ids: Sequence[int]) -> Post:
        """Asks for the log-probabilities of these tokens after the prompt."""

    @abstractmethod
    def log_probs(self, answer: Any) -> LogProbs:
        """Returns the log-probabilities in an answer to `score`, possibly of further tokens."""

    @abstractmethod
    def generate(self, prompt: Sequence[int], max_tokens: int) -> Post:
        """Asks for the text that the model generates greedily after the prompt."""

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
