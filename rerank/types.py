"""The rows that travel through the system. All frozen; ids are strings in TREC spelling."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Literal, Self, TypeAlias

import numpy as np
import numpy.typing as npt

#: (D,) float32, unit length.
Vector: TypeAlias = npt.NDArray[np.float32]
#: (N, D) float32, one unit vector a row.
Matrix: TypeAlias = npt.NDArray[np.float32]
#: How the windows of a batch share a forward pass: side by side in one row, each in a row of its own, or not at all.
Batching: TypeAlias = Literal["packed", "padded", "one_by_one"]


class _Name(StrEnum):
    """Names that callers write, with hyphens; underscores are accepted."""

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        spelled = str(value).replace("_", "-")
        return next((member for member in cls if member.value == spelled), None)


class StrategyKind(_Name):
    """The strategies that a request may name; `rerank.engine.strategies` implements them."""

    SINGLE = "single"
    SLIDING = "sliding"
    TOP_DOWN = "top-down"
    TOURNAMENT = "tournament"
    CASCADE = "cascade"


class FirstStage(_Name):
    """The first-stage retrievers that an index offers."""

    BM25 = "bm25"
    DENSE = "dense"
    HYBRID_RRF = "hybrid-rrf"
    HYBRID_Z_SCORE = "hybrid-z-score"


class FeedbackMethod(_Name):
    """How relevance feedback updates the query vector; see `rerank.retrieval.query_update`."""

    #: Adam on RankNet with pairs weighted by 1 / (rank_i + rank_j): reads the teacher's order only.
    WEIGHTED_RANKNET = "weighted-ranknet"
    #: Adam on the KL divergence of softmax(scores) from softmax(teacher): reads the teacher's scores.
    KL = "kl"
    #: One step towards the mean of the first passages and away from that of the others.
    ROCCHIO = "rocchio"


@dataclass(frozen=True, slots=True)
class Query:
    """What is searched for. `vector` is the encoder's, once somebody has computed it."""

    text: str
    query_id: str = ""
    instruction: str = ""
    vector: Vector | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Passage:
    """A text with its id. `vector` is the encoder's, when it is stored or already computed."""

    doc_id: str
    text: str
    vector: Vector | None = field(default=None, repr=False, compare=False)
    #: The stored vector stands for the beginning of `text` only, because the encoder reads no further.
    vector_truncated: bool = False
    #: What a ranker that reads text puts into its prompts, once it has prepared the passage.
    token_ids: tuple[int, ...] | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A passage with its first-stage score (None when unknown). Its rank is its position in the list."""

    passage: Passage
    score: float | None = None


@dataclass(frozen=True, slots=True)
class ScoredDoc:
    """One row of a first stage's answer."""

    doc_id: str
    score: float


@dataclass(frozen=True, slots=True)
class CandidateSource:
    """A candidate as a request gives it: its text, a reference into the index, or both."""

    doc_id: str
    text: str | None = None
    in_index: bool = False
    score: float | None = None


@dataclass(frozen=True, slots=True)
class RankOptions:
    """How a list is to be ranked. What is empty or 0 takes the model's default.

    Attributes:
        strategy: a StrategyKind, or its name; an unknown name is refused when the list is ranked.
    """

    model: str = ""
    top_n: int = 0
    strategy: StrategyKind | str = ""
    window_size: int = 0
    stride: int = 0
    early_stop: bool = False
    #: The cheap model of a cascade.
    preranker: str = ""
    #: Whether the best order so far is an answer, when the deadline comes first.
    allow_partial: bool = False


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request as a ranker wants it: whatever it needs of every passage, computed once a request."""

    query: Query
    passages: tuple[Passage, ...]
    #: Ids of the passages of which the ranker reads the beginning only.
    truncated_doc_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Window:
    """What a ranker orders in one go: a query and its passages, in the order in which they are read."""

    query: Query
    passages: tuple[Passage, ...]
    #: Only so many of the first places matter, because nothing reads the order behind them; 0: all.
    top_n: int = 0


@dataclass(frozen=True, slots=True)
class WindowRanking:
    """One score per passage of a window, in the window's order; higher is better."""

    scores: tuple[float, ...]
    #: Places in the window of the passages that were cut to fit.
    truncated: tuple[int, ...] = ()
    #: Identifiers of a generated answer that were missing, repeated or foreign, and were mended.
    repairs: int = 0

    @property
    def permutation(self) -> tuple[int, ...]:
        """Positions inside the window, best first; equal scores keep the order in which they were read."""
        return tuple(sorted(range(len(self.scores)), key=lambda position: -self.scores[position]))


class ScoreKind(Enum):
    """What the scores of a ranking mean."""

    #: n for the first of n, then one less per rank: says nothing but the order.
    RANK = "rank"
    #: log-probability of being the best of the one window in which all were read.
    WINDOW_LOG_PROB = "window_log_prob"
    #: comparable across windows and requests.
    CALIBRATED = "calibrated"


class Completeness(Enum):
    """How much of the list was reranked."""

    FULL = "full"
    PARTIAL = "partial"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class WindowTrace:
    """One window that ran: `positions` in first-stage numbering (0-based), in the order they were read."""

    positions: tuple[int, ...]
    permutation: tuple[int, ...]
    tokens: int


@dataclass(frozen=True, slots=True)
class Trace:
    """What ran for one request."""

    model: str
    ranker: str
    model_id: str
    model_revision: str
    template_sha256: str
    strategy: str
    windows: tuple[WindowTrace, ...]
    rounds: int
    truncated_doc_ids: tuple[str, ...]
    #: Over all windows, see WindowRanking.
    repairs: int
    completeness: Completeness
    reason: str
    queue_ms: float
    prepare_ms: float
    model_ms: float
    total_ms: float

    @property
    def tokens(self) -> int:
        return sum(window.tokens for window in self.windows)


@dataclass(frozen=True, slots=True)
class RankedCandidate:
    """A candidate in its final place. `position` is its 0-based place in the list that came in."""

    candidate: Candidate
    position: int
    score: float


@dataclass(frozen=True, slots=True)
class Ranking:
    """The answer to one request, best first; scores decrease strictly."""

    ranked: tuple[RankedCandidate, ...]
    score_kind: ScoreKind
    trace: Trace
