"""Defines the protocols between the engine and the models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Literal, Protocol, runtime_checkable

from rerank.types import Passage, Prepared, Query, ScoreKind, Window, WindowRanking, check_rankings


@dataclass(frozen=True, slots=True)
class RankerInfo:
    """Describes a ranker, as traces and `ListModels` report it."""

    kind: str
    model_id: str
    #: SHA-256 of the weights; empty where there are none.
    model_revision: str
    #: SHA-256 of the prompt template; empty where there is none.
    template_sha256: str
    #: The largest window that the ranker reads, in passages.
    max_window_size: int
    #: The meaning of its scores inside a window.
    score_kind: ScoreKind
    #: False for a ranker that keeps the order without reading the passages.
    reads_passages: bool = True
    #: True if several windows, or pieces of them, run through the model together.
    reads_together: bool = False
    #: The most tokens of a passage's text that `prepare` reads; the work for longer texts is estimated by it.
    max_passage_tokens: int = 1_000_000
    #: The most tokens of a window.
    max_window_tokens: int = 1_000_000
    #: True if a passage enters a window as its vector, whatever its length, and `prepare` computes missing vectors.
    reads_vectors: bool = False
    #: True if the ranker reads the score of a passage's sparse vector, and `prepare` computes it.
    reads_sparse: bool = False
    #: True if the ranker adds the scores of the first stage to its own; otherwise the engine does.
    adds_first_stage: bool = False
    #: The most passages of a window whose missing vectors `rank` computes.
    max_encoded_passages: int = 0
    #: The most tokens that the model reads together on a GPU; 0 on a CPU.
    gpu_batch_tokens: int = 0
    #: True if the prompt has a place for the instruction of a query.
    reads_instruction: bool = False
    #: Why the model may not give its published figures; empty if nothing is known to differ.
    warning: str = ""
    #: What gives the relevance of a passage: the score, which is a probability or its log-odds, or the cosine, by the
    #: curve of the service's encoder. Empty: nothing does.
    relevance: Literal["", "score", "cosine"] = ""
    #: What the model computes in: float32 or bfloat16; empty where that is not known here.
    precision: str = ""

    @property
    def reads_alone(self) -> bool:
        """True if what is read of a passage depends on no other passage, so that a list may be longer."""
        return self.score_kind.is_pointwise or self.adds_first_stage

    def is_ready(self, passage: Passage) -> bool:
        """Returns True if `prepare` has nothing to compute for the passage."""
        if self.reads_sparse:
            return passage.sparse is not None
        return self.reads_vectors and passage.vector is not None


class WindowEncoder(Protocol):
    """Prepares windows for a model. The engine calls both methods on threads of their own, concurrently."""

    info: RankerInfo

    def prepare(self, query: Query, passages: Sequence[Passage]) -> Prepared:
        """Computes what the windows of a request share, such as sanitized text and vectors.

        Called once per slice of a request's passages; from the second one on, with the query that the first returned.

        Raises:
            InvalidRequest: the query is longer than the model can read.
        """
        ...

    def encode(self, window: Window) -> Window:
        """Renders a window of prepared passages as model input, see Window. Called once per window.

        Raises:
            InvalidRequest: the query leaves too little room for the passages.
        """
        ...


class Ranker(WindowEncoder, Protocol):
    """Orders windows of passages. The pieces of a window wait in the queue one by one, so that callers take turns.

    A piece is a window, or one of its batches, and has `tokens`.
    """

    def read(self, pieces: Sequence[Any]) -> list[Any]:
        """Returns one result per piece, possibly of several windows. The engine calls it on a thread of its own.

        Raises:
            MemoryError: the pieces do not fit into the device's memory together; the engine tries fewer at once.
        """
        ...

    def ranking(self, window: Window, results: Sequence[Any]) -> WindowRanking:
        """Returns the ranking of a window, one finite score per passage, from the results of its pieces."""
        ...


@runtime_checkable
class PausingRanker(Protocol):
    """A ranker that can pause in the middle of a batch, so that a more urgent one runs there."""

    info: RankerInfo

    def call_between_layers(self, function: Callable[[], None]) -> None:
        """Makes `read` call the function before each layer of the model. It may call `read` again."""
        ...


@runtime_checkable
class CachingRanker(Protocol):
    """A ranker whose encoders keep what they computed of texts for later requests."""

    def with_cached_vector(self, passage: Passage) -> Passage:
        """Returns the passage with what earlier requests computed of its text."""
        ...


@runtime_checkable
class RemoteRanker(WindowEncoder, Protocol):
    """A ranker whose model runs in an inference server: the engine awaits the windows concurrently.

    Attributes:
        max_in_flight: the most windows at a time.
        problem: why windows cannot be ranked at the moment; empty if they can.
    """

    max_in_flight: int

    @property
    def problem(self) -> str: ...

    async def open(self) -> None:
        """Checks the servers and watches them from now on; returns also if none of them can be used."""
        ...

    async def close(self) -> None: ...

    async def rank_window(self, window: Window) -> WindowRanking:
        """Returns the ranking of a window. If it is cancelled, the server stops its work on it.

        Raises:
            ModelServerUnavailable: no server answered.
            ModelServerUnfit: a server refused the request, or answered without the scores.
        """
        ...


def rank_windows(ranker: Ranker, windows: Sequence[Window]) -> list[WindowRanking]:
    """Encodes windows and ranks them in one batch, without an engine.

    Raises:
        RankerFailure: the ranker did not return one finite score per passage.
    """
    encoded = [ranker.encode(window) for window in windows]
    results = iter(ranker.read(list(chain.from_iterable(window.pieces for window in encoded))))
    rankings = [ranker.ranking(window, list(islice(results, len(window.pieces)))) for window in encoded]
    check_rankings(rankings, encoded, ranker.info.precision)
    return rankings
