"""Data types that all modules share: queries, passages, windows and rankings. All are frozen; ids are strings."""

from __future__ import annotations

import math
import re
import reprlib
from array import array
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from operator import attrgetter
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, TypeVar, cast

import numpy as np
import numpy.typing as npt

from rerank.errors import InvalidRequest, RankerFailure
from rerank.names import FeedbackMethod as FeedbackMethod
from rerank.names import FirstStage as FirstStage
from rerank.names import FirstStageKind as FirstStageKind
from rerank.names import FirstStageWeight as FirstStageWeight
from rerank.names import OnFailure as OnFailure
from rerank.names import StrategyKind as StrategyKind
from rerank.names import first_stage_weight
from rerank.util.sparse_vectors import SparseText as SparseText
from rerank.util.sparse_vectors import SparseVector as SparseVector
from rerank.util.terminal import TableRow, ranking_table
from rerank.util.word_table import WordTable

T = TypeVar("T")

#: Control characters other than tab and line ends, which carry no meaning.
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")

#: A doc_id is not blank, and has no control characters, such as tabs and line ends, nor Unicode's separators of lines
#: and paragraphs. Spaces are fine.
VALID_DOC_ID = re.compile(r"(?=.*\S)[^\x00-\x1f\x7f-\x9f\u2028\u2029]+")

#: Seconds before its deadline at which a request is answered instead of failing. Measured on two busy cores:
#: with 0.02, 40 of 40 answers with 100 short passages arrived in time; of 40 answers with 1000 passages of 2,000
#: characters, 31 did with 0.05 and 38 with 0.1.
ANSWER_MARGIN_S = 0.1

#: (D,) float32, unit length.
Vector: TypeAlias = npt.NDArray[np.float32]
#: (N, D) float32, each row a unit vector.
Matrix: TypeAlias = npt.NDArray[np.float32]
#: Number format of a model's computation. `auto`: see `pick_precision` and `pick_encoder_dtype` in
#: rerank/models/precision.py. On a CPU only linear layers and attention are in bfloat16.
Precision: TypeAlias = Literal["auto", "float32", "bfloat16", "float8"]
#: A generator that does work in small steps: it yields between them, so that other work can run, and returns a result.
SlicedWork: TypeAlias = Generator[None, None, T]


@dataclass(frozen=True, slots=True)
class Query:
    """A search query.

    Attributes:
        vector: its embedding by the encoder; None until it is computed.
        sparse: its vector by the sparse encoder, at unit length; None until it is computed.
        word_table: document frequencies of its stems in the collection of all candidates; None if it is not known.
        is_truncated: a model or a first stage reads only the beginning of `text`.
    """

    text: str
    query_id: str = ""
    instruction: str = ""
    vector: Vector | None = field(default=None, repr=False, compare=False)
    sparse: SparseVector | None = field(default=None, repr=False, compare=False)
    word_table: WordTable | None = field(default=None, repr=False, compare=False)
    is_truncated: bool = False

    @property
    def is_empty(self) -> bool:
        """True if the text is empty, or has only white space and control characters."""
        return not CONTROL.sub(" ", self.text).strip()

    @classmethod
    def of(cls, query: Query | str) -> Query:
        """A query without control characters. White space at its ends stays, because published models read it.

        Raises:
            InvalidRequest: `query` is not a query, or is empty.
        """
        if not isinstance(query, cls | str):
            raise InvalidRequest("query", f"{reprlib.repr(query)} is not a query; give a text or a Query")
        given = cls(query) if isinstance(query, str) else query
        text = CONTROL.sub(" ", given.text)
        if given.is_empty:
            raise InvalidRequest("query", "the query is empty; send more than white space and control characters")
        return given if text == given.text else replace(given, text=text)


class TextTokens(NamedTuple):
    """The tokens of a text: their ids, and the start and end of each token in the text, in characters.

    They are arrays, in which a token takes 12 bytes, and not lists, in which it takes 200: a request may have a
    thousand documents.
    """

    ids: array[int]
    starts: array[int]
    ends: array[int]


@dataclass(frozen=True, slots=True)
class Passage:
    """A passage of a list, from the request to the ranking. Its rank in the first stage is its position in the list.

    Attributes:
        text: empty in a request for a passage of the index.
        score: score of the first stage; None when unknown.
        title: the title; empty if it is unknown. While the passage is ranked, `text` begins with it.
        in_index: whether text and vector are read from the index.
    """

    doc_id: str
    text: str = ""
    score: float | None = None
    title: str = ""
    in_index: bool = field(default=False, kw_only=True)
    #: Characters of the title that was put in front of the text of the request.
    prefix_chars: int = field(default=0, kw_only=True)
    #: Its embedding by the encoder; None until it is read from an index or computed.
    vector: Vector | None = field(default=None, repr=False, compare=False, kw_only=True)
    #: `vector` covers only the beginning of `text`, because the encoder reads no further.
    vector_truncated: bool = field(default=False, kw_only=True)
    #: Number of tokens of `text` that the encoder read, if `vector` comes from the cache; None if it does not.
    cached_tokens: int | None = field(default=None, compare=False, kw_only=True)
    #: The sparse vector of `text` from an index, or its token states; None until one of them is known.
    sparse: SparseText | None = field(default=None, repr=False, compare=False, kw_only=True)
    #: The stems of the words of `text`; None until they are read.
    stems: tuple[str, ...] | None = field(default=None, repr=False, compare=False, kw_only=True)
    #: Score of the query by learned sparse vectors; set by the ranker that reads it, when it prepares the passage.
    sparse_score: float | None = field(default=None, compare=False, kw_only=True)
    #: The tokens of `text` for the model that reads it; set by its ranker, when it prepares the passage.
    tokens: TextTokens | None = field(default=None, repr=False, compare=False, kw_only=True)

    @property
    def is_as_sent(self) -> bool:
        """True if the text has no title in front of it, and nothing was computed or read for it."""
        return (
            self.vector is None
            and self.sparse is None
            and self.stems is None
            and self.sparse_score is None
            and self.tokens is None
            and not self.prefix_chars
            and not self.vector_truncated
        )


@dataclass(frozen=True, slots=True)
class ScoredDoc:
    """A document that a first-stage retriever found, with its score."""

    doc_id: str
    score: float


#: The forms of a candidate that a caller may give; `rerank.readers.candidates` reads them.
CandidateLike: TypeAlias = Passage | Mapping[str, object] | tuple[str | int, str] | str
CANDIDATE_FORMS = (
    "a dict with doc_id (or _id, docid, id), text, title, score, a pair (doc_id, text), a plain text, or a Passage"
)


def candidate_list(candidates: Iterable[T]) -> list[T]:
    """The candidates as a list. Raises: InvalidRequest if `candidates` is a string, a mapping or not iterable."""
    if isinstance(candidates, str | bytes | Mapping) or not isinstance(candidates, Iterable):
        raise InvalidRequest(
            "candidates", f"{reprlib.repr(candidates)} is not a list; a candidate is {CANDIDATE_FORMS}"
        )
    return list(candidates)


def with_text(passage: Passage, text: str) -> Passage:
    """Returns the passage with this text; the same object if it has this text already."""
    return passage if passage.text == text else replace(passage, text=text)


def with_title(text: str, title: str) -> str:
    """The text with its title in front, unless the text begins with the title."""
    if not title or (text.startswith(title) and not text[len(title) : len(title) + 1].isalnum()):
        return text
    return f"{title} {text}"


@dataclass(frozen=True, slots=True)
class RankOptions:
    """Options of a rerank request. Fields that are empty or 0 take the model's default; enums may be given by name.

    Raises:
        InvalidRequest: there is no such name, or a number is negative.
    """

    model: str = ""
    top_n: int = 0
    strategy: StrategyKind | str = ""
    window_size: int = 0
    stride: int = 0
    #: The model that orders all candidates first, in a cascade.
    preranker: str = ""
    #: At the deadline, return the best order so far instead of an error.
    allow_partial: bool = False
    #: Weight of the first stage in the order, see `rerank.engine.scores`: a number; `auto`, the model decides; or
    #: `neural` for a strong neural first stage. None: the service's setting.
    first_stage_weight: FirstStageWeight | str | None = None
    #: Whether the candidates are in the order of a first stage, best first. False: their order has no effect on the
    #: ranking, and equal texts get equal scores; see `rerank.reranking.unordered`.
    ordered: bool = True
    #: Leave out results with less relevance, 0 to 1, before `top_n` counts; None: none is left out.
    min_relevance: float | None = None
    #: The most parts of a longer document; its best part counts, see `rerank.reranking.chunks`.
    #: Below 2, its beginning is read.
    max_chunks_per_doc: int = 0
    #: Error or answer if the service fails, see OnFailure; empty: the error.
    on_failure: OnFailure | str = ""

    @property
    def is_answered_late(self) -> bool:
        """True if the deadline ends a request with an answer instead of an error."""
        return self.allow_partial or self.on_failure == OnFailure.FIRST_STAGE

    @property
    def answer_margin_s(self) -> float:
        """Seconds before its deadline at which a late request is answered; 0 if it ends with an error."""
        return ANSWER_MARGIN_S if self.is_answered_late else 0.0

    def __post_init__(self) -> None:
        numbers = {"top_n": self.top_n, "strategy.window_size": self.window_size, "strategy.stride": self.stride}
        for name, number in (numbers | {"max_chunks_per_doc": self.max_chunks_per_doc}).items():
            if number < 0:
                raise InvalidRequest(name, f"{number} is negative; use 0 or more", {"value": str(number)})
        enums = (("strategy", StrategyKind, "strategy.kind"), ("on_failure", OnFailure, "on_failure"))
        for name, kind, path in enums:
            if given := getattr(self, name):
                object.__setattr__(self, name, kind.of(path, given))
        if self.first_stage_weight is not None:
            object.__setattr__(self, "first_stage_weight", first_stage_weight(self.first_stage_weight))


@dataclass(frozen=True, slots=True)
class FeedbackSettings:
    """Settings of the query vector update. The method e2rank has no other settings.

    Attributes:
        method: the loss and its optimisation; see `FeedbackMethod`.
        top_k: number of passages from the top of the ranking that serve as the teacher.
        steps: number of Adam steps; 0: as published, see `descent`. Rocchio ignores it.
        learning_rate: learning rate of Adam; one step changes a coordinate by about this much. 0: as published, see
            `descent`. Rocchio ignores it. In a chain, `steps` and `learning_rate` are those of the first update, see
            `of_chain`.
        min_cosine: trust region, at least 0 and below 1: the smallest allowed cosine between the updated and the
            original vector.
    """

    method: FeedbackMethod = FeedbackMethod.WEIGHTED_RANKNET
    top_k: int = 100
    steps: int = 0
    learning_rate: float = 0.0
    min_cosine: float = 0.8

    @property
    def descent(self) -> tuple[int, float]:
        """Steps and learning rate: ReFIT's (arXiv 2305.11744) for KL, else FIRST's (arXiv 2406.15657)."""
        steps, rate = (100, 5e-3) if self.method is FeedbackMethod.KL else (20, 1e-3)
        return self.steps or steps, self.learning_rate or rate

    @property
    def of_chain(self) -> tuple[FeedbackSettings, FeedbackSettings]:
        """Settings of the two updates of a chain: KL, then RankNet with a fifth of its steps and rate (FIRST)."""
        kl = replace(self, method=FeedbackMethod.KL)
        steps, rate = kl.descent
        ranknet = FeedbackMethod.WEIGHTED_RANKNET_FIRST
        return kl, replace(self, method=ranknet, steps=max(steps // 5, 1), learning_rate=rate / 5)

    @classmethod
    def of(cls, feedback: FeedbackSettings | FeedbackMethod | str) -> FeedbackSettings:
        """The settings, with a method given by name converted; for a method alone, its default settings.

        Raises: InvalidRequest.
        """
        settings = feedback if isinstance(feedback, cls) else cls(method=cast(FeedbackMethod, feedback))
        return replace(settings, method=FeedbackMethod.of("feedback.method", settings.method))


@dataclass(frozen=True, slots=True)
class PreparedTexts:
    """A query and its passages with what a ranker computes once per request: sanitized text, tokens or vectors."""

    query: Query
    passages: tuple[Passage, ...]
    #: Ids of the passages whose beginning alone is read by the ranker.
    truncated_doc_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Window:
    """The input of one ranker call: a query and the passages to order, in the order that the model reads.

    `Ranker.encode` renders it as model input, and sets the attributes from `prompts` on.

    Attributes:
        top_n: only the order of the best `top_n` passages is needed; 0: of all.
        first_stage: scores of the first stage, or of a cascade's preranker, which are added to the model's; empty if
            none are added.
        weight: weight of these scores relative to the model's; 0: they do not count. A ranker that adds the first stage
            itself may get a kind, and weights the scores by the list.
        prompts: token ids of each prompt that the model reads for the window; none if the ranker reads no prompt.
        tokens: positions that the model reads and generates for the window, with those of cached texts. The scheduler
            counts the tokens of the parts instead.
        truncated: indices in the window of the passages that were truncated to fit the prompt.
        parts: parts of the window that are queued separately; empty: the window is its only part.
    """

    query: Query
    passages: tuple[Passage, ...]
    top_n: int = 0
    first_stage: tuple[float, ...] = ()
    weight: FirstStageWeight = 0.0
    prompts: tuple[tuple[int, ...], ...] = ()
    tokens: int = 0
    truncated: tuple[int, ...] = ()
    parts: tuple[Any, ...] = ()

    @property
    def window(self) -> Window:
        """The window itself, for code that reads the windows of parts."""
        return self

    def tokens_with(self, decode_cost: DecodeCost) -> int:
        """The number of positions that the model read and wrote for the window; without decoding, `tokens`."""
        return sum(map(len, self.prompts)) + decode_cost.tokens if decode_cost.tokens else self.tokens


class DecodeCost(NamedTuple):
    """The cost of the tokens (in PE-Rank, of the passages) that a model wrote after the prompt of a window.

    Attributes:
        tokens: number of tokens; the first one comes from reading the prompt.
        ms: duration of the other tokens, a part of the batch's duration; 0 if an inference server wrote them.
    """

    tokens: int = 0
    ms: float = 0.0


@dataclass(frozen=True, slots=True)
class WindowRanking:
    """One score per passage of a window, in the window's order; higher is better."""

    scores: tuple[float, ...]
    #: Positions of a generated permutation whose identifier was missing, repeated or unknown, and were repaired.
    repairs: int = 0
    #: The reasoning was cut off before an answer: the scores repeat the order of the window.
    is_unanswered: bool = False
    #: The cosine of the query with each passage, NaN for a passage without one; empty if none was computed.
    cosines: tuple[float, ...] = ()
    #: The weight of the first stage in the scores; 0: it does not count.
    weight: float = 0.0
    #: The weighted z-scores of BM25 over the texts, which the engine adds to the scores; empty: none.
    lexical: tuple[float, ...] = ()
    #: A warning for the caller about how the window was read; empty: none.
    warning: str = ""
    #: The unit vector by the ranker of query and passages together, for another search; None if it computes none.
    query_vector: Vector | None = field(default=None, repr=False, compare=False)
    decode_cost: DecodeCost = field(default=DecodeCost(), compare=False)

    @property
    def permutation(self) -> tuple[int, ...]:
        """Indices in the window, best first; passages with equal scores keep their order."""
        return tuple(sorted(range(len(self.scores)), key=self.scores.__getitem__, reverse=True))


class Part(Protocol):
    """A part of a window that is queued separately, so that other callers' work can run between the parts."""

    @property
    def window(self) -> Window: ...

    @property
    def tokens(self) -> int:
        """The positions that the model reads and writes for the part."""
        ...


def check_rankings(rankings: Sequence[WindowRanking | None], parts: Sequence[Part], precision: str) -> None:
    """Raises: RankerFailure unless each ranking has one finite score per passage of the window of its part.

    Args:
        rankings: one per part; None for a part that is not the last one of its window.
        precision: number format of the ranker's computation, for the message; empty if unknown.
    """
    for part, ranking in zip(parts, rankings, strict=True):
        if ranking is None:
            continue
        n = len(part.window.passages)
        if len(ranking.scores) != n:
            found = f"{len(ranking.scores)} scores for a window of {n} passages"
            raise RankerFailure(f"the ranker returned {found}; this is a bug")
        if not all(map(math.isfinite, ranking.scores)):
            retry = "" if precision == "float32" else ", or try precision: float32"
            raise RankerFailure(
                "its scores are not finite: weights with NaN, or too large for the precision "
                f"({precision or 'unknown'}); train again{retry}"
            )


class ScoreKind(Enum):
    """The meaning of the scores of a ranking."""

    #: n for the first of n passages, then one less per rank (equal texts of an unordered list have the score of the
    #: first of them): the scores carry the order only.
    RANK = "rank"
    #: Log-probability of being the best passage of the one window that held all of them.
    WINDOW_LOG_PROB = "window_log_prob"
    #: The model's own score of query and passage, as `CrossEncoder.predict` gives it; comparable over requests.
    POINTWISE = "pointwise"
    #: The same for a model that gives a probability, between 0 and 1.
    POINTWISE_PROBABILITY = "pointwise_probability"
    #: The model's score of the passage among the others of the one window that held all of them, or the sum of its
    #: z-score and the weighted one of the first stage.
    WINDOW_SCORE = "window_score"

    @property
    def is_pointwise(self) -> bool:
        """True if the score of a passage depends on no other passage."""
        return self in (ScoreKind.POINTWISE, ScoreKind.POINTWISE_PROBABILITY)


class Completeness(Enum):
    """The part of the list that was reranked."""

    FULL = "full"
    PARTIAL = "partial"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class WindowTrace:
    """A window that was ranked: `positions` are 0-based ranks of the first stage, in the order the model read them.

    Attributes:
        permutation: indices in the window, best first, after the first stage's scores were added.
        scores: the model's own scores, in the order of `positions`; `score_kind` is their meaning.
        round: 0-based; the windows of one round are independent.
        model: the model that ranked it; in a cascade, the preranker ranks the first rounds.
        truncated: indices of the passages that were truncated to fit the prompt.
        queue_ms, model_ms: the time in the queue and the duration of the batch, in milliseconds.
        decode_tokens: how many of `tokens` the model wrote.
        cosines: see WindowRanking, in the order of `positions`.
    """

    positions: tuple[int, ...]
    permutation: tuple[int, ...]
    tokens: int
    scores: tuple[float, ...] = ()
    score_kind: ScoreKind = ScoreKind.RANK
    round: int = 0
    model: str = ""
    truncated: tuple[int, ...] = ()
    queue_ms: float = field(default=0.0, compare=False)
    model_ms: float = field(default=0.0, compare=False)
    decode_tokens: int = 0
    cosines: tuple[float, ...] = field(default=(), compare=False, repr=False)


def preranker_scores(windows: Sequence[WindowTrace]) -> tuple[ScoreKind, dict[int, float]]:
    """The kind of a cascade's preranker's scores, and position → score, for scores that can be compared.

    Scores of several windows can be compared only if each depends on its passage alone. For other scores, and for
    ranks, the mapping is empty.
    """
    last = windows[-1].model if windows else ""
    name = next((window.model for window in reversed(windows) if window.model != last), "")
    of_it = [window for window in windows if window.model == name]
    kind = of_it[0].score_kind if of_it else ScoreKind.RANK
    if kind is ScoreKind.RANK or (len(of_it) > 1 and not kind.is_pointwise):
        return kind, {}
    return kind, {position: score for one in of_it for position, score in zip(one.positions, one.scores, strict=True)}


@dataclass(frozen=True, slots=True)
class Trace:
    """Model, windows, cost and latency of one request."""

    model: str
    strategy: str
    windows: tuple[WindowTrace, ...]
    rounds: int
    truncated_doc_ids: tuple[str, ...]
    #: Sum over all windows, see WindowRanking.
    repairs: int
    completeness: Completeness
    reason: str
    queue_ms: float
    prepare_ms: float
    model_ms: float
    #: The part of `model_ms` after the first tokens that the model wrote, see DecodeCost.
    decode_ms: float
    total_ms: float
    #: The weight of the first stage in the order; 0: it did not count.
    first_stage_weight: float = 0.0
    #: Kendall's tau of the order with the first stage's: 1 if it is the same, -1 if it is reversed. None for an
    #: unordered list, and for a single candidate.
    kendall_tau: float | None = None
    #: Warnings, such as that the model may not give its published figures, that the first stage does not count, or why
    #: no result is left; empty: none.
    model_warning: str = ""
    #: Positions in the order in which the ranker received them, for an unordered list one for each distinct text; empty
    #: if they are in the order of the request.
    input_order: tuple[int, ...] = ()
    #: The class of the error that the ranking replaces; None if there was no error.
    failure: type[Exception] | None = None
    #: A model or the first stage read only the beginning of the query.
    query_truncated: bool = False
    #: Identifiers in the generated permutations of all windows, including `repairs`; 0: no model wrote an order.
    generated: int = 0
    #: The settings of the model's prompts beside the template's words; empty: the default ones.
    prompt: str = ""
    #: The vector of the last window, see WindowRanking.
    query_vector: Vector | None = field(default=None, repr=False, compare=False)

    @property
    def tokens(self) -> int:
        return sum(map(attrgetter("tokens"), self.windows))

    @property
    def cosines(self) -> int | None:
        """The number of candidates whose cosine with the query was read; None if no model reads cosines."""
        found, is_read = set[int](), False
        for window in self.windows:
            is_read |= bool(window.cosines)
            for position, cosine in zip(window.positions, window.cosines, strict=bool(window.cosines)):
                if not math.isnan(cosine):
                    found.add(position)
        return len(found) if is_read else None

    def __repr__(self) -> str:
        return (
            f"<Trace: {self.model}, {self.strategy}, {len(self.windows)} windows, {self.tokens:,} tokens, "
            f"{self.total_ms:.0f} ms, {self.completeness.value}>"
        )


@dataclass(frozen=True, slots=True)
class RankedCandidate:
    """A passage with its score, and its relevance (None: unknown). `position` is its 0-based rank in the request.

    The relevance depends only on the query and the passage, so it may be larger than that of the preceding result.
    `span` is the part of a divided document that was read: start and end in the text of the request, in characters.
    """

    passage: Passage
    position: int
    score: float
    relevance: float | None = None
    span: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Ranking:
    """The reranked list of one request, best first.

    Scores decrease strictly, except that equal texts of an unordered list have equal scores.
    """

    ranked: tuple[RankedCandidate, ...]
    score_kind: ScoreKind
    trace: Trace

    def __repr__(self) -> str:
        best = ", ".join(item.passage.doc_id for item in self.ranked[:3])
        more = ", …" if len(self.ranked) > 3 else ""
        return f"<Ranking: {len(self.ranked)} results by {self.trace.model}, {self.trace.strategy}: {best}{more}>"

    def __str__(self) -> str:
        """A short table of rank, score, doc_id and the beginning of the text."""
        passages = [(item.score, item.passage) for item in self.ranked]
        return ranking_table([TableRow(score, passage.doc_id, passage.text) for score, passage in passages])
