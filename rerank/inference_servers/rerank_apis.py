"""Describes the rerank APIs: what is sent for a query and passages, and how their scores are read.

Nothing here sends anything. The APIs differ in names only, so each is a row of names.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rerank.inference_servers.api import Post


@dataclass(frozen=True, slots=True)
class RerankApi:
    """A rerank API: a query and passages in one request, and one score for each passage in the answer.

    Attributes:
        path: path of the method.
        health: path that answers GET if the server is ready; empty: there is none.
        query, passages, instruction: names of fields of the request; an API without `instruction` reads none.
        always: further fields of each request.
        results: name of the list in the answer; empty: the answer is the list.
        score: name of the score in each of its elements, which have the passage's position as `index`.
        max_passages: largest number of passages of a request for pointwise scores.
        gives_probabilities: whether a pointwise score is a probability; otherwise a logit.
    """

    path: str
    health: str = "/health"
    query: str = "query"
    passages: str = "documents"
    instruction: str = ""
    always: Mapping[str, Any] = field(default_factory=dict)
    results: str = "results"
    score: str = "relevance_score"
    max_passages: int = 1_000
    gives_probabilities: bool = True

    @property
    def reserved_fields(self) -> frozenset[str]:
        """The fields that we fill in, and the fields that would leave passages out of the answer."""
        return frozenset({"model", self.query, self.passages, self.instruction, "top_n", "top_k"})

    def request(
        self, model: str, query: str, texts: Sequence[str], fields: Mapping[str, Any], instruction: str
    ) -> Post:
        """Returns the request for the scores of texts."""
        body: dict[str, Any] = {"model": model, self.query: query, self.passages: list(texts)}
        if instruction:
            body[self.instruction] = instruction
        return Post(self.path, {**self.always, **fields, **body})

    def scores(self, answer: Any, n: int) -> list[float]:
        """Returns the scores of n passages, in the order of the request.

        Raises: LookupError, TypeError or ValueError unless the answer has each passage once, with a finite score.
        """
        results = answer[self.results] if self.results else answer
        if not isinstance(results, list) or len(results) != n:
            found = len(results) if isinstance(results, list) else "no list of"
            raise ValueError(f"{found} results for {n} passages")
        scores: dict[int, float] = {}
        for result in results:
            index, score = result["index"], result[self.score]
            if type(index) is not int or not 0 <= index < n or index in scores:
                raise ValueError(f"index {str(index)[:20]} among the results of {n} passages")
            scores[index] = _finite(score)
        return [scores[index] for index in range(n)]


def _finite(score: Any) -> float:
    """Returns the score. Raises: ValueError if it is not a number, or not finite."""
    try:
        number = float(score) if type(score) in (int, float) else math.nan
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"score {str(score)[:20]}, which is not a finite number")
    return number


#: The APIs by the names that `served_by.kind` takes where the ranker is `api`.
RERANK_APIS: Mapping[str, RerankApi] = {
    "vllm": RerankApi("/v1/rerank", instruction="instruction"),
    "vllm-score": RerankApi(
        "/v1/score", query="text_1", passages="text_2", instruction="instruction", results="data", score="score"
    ),
    "sglang": RerankApi(
        "/v1/rerank",
        instruction="instruct",
        always={"return_documents": False},
        results="",
        score="score",
        gives_probabilities=False,
    ),
    "llama-cpp": RerankApi("/v1/rerank", gives_probabilities=False),
    "tei": RerankApi(
        "/rerank", passages="texts", always={"truncate": True}, results="", score="score", max_passages=32
    ),
    "infinity": RerankApi("/rerank"),
    "cohere": RerankApi("/v2/rerank", health=""),
    "jina": RerankApi("/v1/rerank", health="", always={"return_documents": False}),
}
