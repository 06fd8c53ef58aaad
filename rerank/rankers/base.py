"""The interface of rankers, which the engine calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from rerank.types import Passage, PreparedTexts, Query, ScoreKind, Window, WindowRanking, check_rankings


@dataclass(frozen=True, slots=True)
class RankerInfo:
    """Describes a ranker, as traces and `ListModels` report it."""

    kind: str
    model_id: str
    #: SHA-256 of the weights; empty for a ranker without weights.
    model_revision: str
    #: SHA-256 of the prompt template; empty for a ranker without one.
    template_sha256: str
    #: The largest window that the ranker reads, in passages.
    max_window_size: int
    #: The meaning of its scores inside a window.
    score_kind: ScoreKind
    #: Settings of the prompt in addition to the template's words, as the text of `PromptStyle`; empty: the defaults.
    prompt: str = ""
    #: False for a ranker that keeps the order of the passages and does not read their texts.
    reorders: bool = True
    #: True if its windows include passages without a text.
    reads_blank: bool = False
    #: True if several windows, or parts of them, run through the model together.
    supports_batching: bool = False
    #: True if it can pause between two layers, so that a more urgent batch runs there, see `call_between_layers`.
    supports_preemption: bool = False
    #: True if it caches results about texts for later requests, see `with_cached`.
    has_cache: bool = False
    #: Largest number of windows at a time on the server that runs the model; 0: the model runs in this process.
    max_in_flight: int = 0
    #: Largest number of tokens of a passage's text that `prepare` reads. The engine estimates a request's work by it.
    max_passage_tokens: int = 1_000_000
    #: Largest number of tokens of a window.
    max_window_tokens: int = 1_000_000
    #: True if a passage enters a window as its vector, whatever its length, and `prepare` computes missing vectors.
    needs_vectors: bool = False
    #: True if the ranker reads the score of a passage's sparse vector, and `prepare` computes it.
    needs_sparse: bool = False
    #: True if the ranker adds the first stage's scores; otherwise the engine adds them.
    adds_first_stage: bool = False
    #: Largest number of passages of a window whose missing vectors `score` computes.
    max_encoded_passages: int = 0
    #: Largest number of tokens that the model reads together on a GPU; 0 on a CPU.
    gpu_batch_tokens: int = 0
    #: True if prompts contain the instruction of a query.
    reads_instruction: bool = False
    #: Why the model may not give its published figures; empty if nothing is known to differ.
    warning: str = ""
    #: Source of the relevance of a passage: `score`, a probability or its log-odds; `cosine`, from which the curve of
    #: the service's encoder computes a probability. Empty: the ranker gives no relevance.
    relevance: Literal["", "score", "cosine"] = ""
    #: Number format of the computation, float32 or bfloat16; empty if unknown.
    precision: str = ""


class Ranker(ABC):
    """Orders windows of passages, by a model in this process or on a server; `info` says what it can do.

    The engine calls `prepare` and `encode` on one thread, and `score` on another, concurrently.

    Attributes:
        problem: why it cannot rank at the moment; empty if it can.
        reference: the scores of the model as transformers loads and runs it, one row for each window of the self-test,
            or for each choice in it, see `choice_scores`; None: transformers cannot run the model.
    """

    info: RankerInfo
    problem: str = ""
    reference: tuple[tuple[float, ...], ...] | None = None

    async def open(self) -> None:  # noqa: B027  (a model in this process is ready)
        """Checks the servers and begins to watch them. Does not raise if they cannot be used; `problem` says why."""

    async def close(self) -> None:  # noqa: B027
        """Stops watching the servers, and closes the connections to them."""

    def with_cached(self, passage: Passage) -> Passage:
        """Returns the passage with cached results of its text from earlier requests, see `RankerInfo.has_cache`."""
        return passage

    @abstractmethod
    def prepare(self, query: Query, passages: Sequence[Passage]) -> PreparedTexts:
        """Computes what the windows of a request share, such as sanitized text and vectors.

        Called once per slice of a request's passages. All calls but the first get the query that the first returned.

        Raises:
            InvalidRequest: the query is longer than the model can read.
        """

    @abstractmethod
    def encode(self, window: Window) -> Window:
        """Renders a window of prepared passages as model input, see Window. Called once per window.

        Raises:
            InvalidRequest: the query leaves too little room for the passages.
        """

    @abstractmethod
    def score(self, parts: Sequence[Any]) -> Sequence[WindowRanking | None] | Awaitable[Sequence[WindowRanking | None]]:
        """Scores parts of encoded windows, possibly of several.

        Returns:
            One element per part: the ranking of its window for the last part, with one finite score per passage; None
            for the other parts. If the model runs on a server, the result is awaitable, and cancelling it stops the
            work of the server.

        Raises:
            MemoryError: the parts do not fit into the device's memory together; the engine tries fewer at once.
            ModelServerUnavailable: no server answered.
            ModelServerUnfit: a server refused the request, or answered without the scores.
        """

    def call_between_layers(self, function: Callable[[], None]) -> None:  # noqa: B027
        """Sets a function that `score` calls before each layer of the model; the function may call `score` again.

        See `RankerInfo.supports_preemption`.
        """

    def choice_scores(self, windows: Sequence[Window]) -> list[list[tuple[float, ...]]] | None:
        """Returns one row of scores per choice for each encoded window, as if passages were chosen in their order.

        Only a ranker that chooses one passage after the other has them; others return None. Its scores are ranks, which
        the self-test cannot compare: rounding may decide a choice between two similar passages, and so all later ones.
        """
        return None


def rank_windows(ranker: Ranker, windows: Sequence[Window]) -> list[WindowRanking]:
    """Encodes windows and ranks them in one batch, without an engine; for a model in this process.

    Raises:
        RankerFailure: the ranker did not return one finite score per passage.
    """
    encoded = [ranker.encode(window) for window in windows]
    parts = [part for window in encoded for part in window.parts or (window,)]
    scored = cast(Sequence[WindowRanking | None], ranker.score(parts))
    rankings = [ranking for ranking in scored if ranking is not None]  # the last part of each window has its ranking
    check_rankings(rankings, encoded, ranker.info.precision)
    return rankings
