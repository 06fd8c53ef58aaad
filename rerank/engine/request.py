"""A request in the engine: its options, its cost, the state of its ranking, and the work done so far."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

from rerank.engine.accounts import CallUsage
from rerank.engine.scores import first_stage_scores, reciprocal_ranks, with_signals
from rerank.engine.strategies import Cost, Positions, RankStage, Round, Schedule, Stages, Strategy, describe
from rerank.errors import RankerFailure
from rerank.rankers.base import RankerInfo
from rerank.types import Passage, PreparedTexts, Query, RankOptions, Window, WindowRanking, WindowTrace

#: Least number of tokens that a window counts as, because it must be scheduled, encoded and reported, too.
MIN_WINDOW_TOKENS = 16


class Phase(Enum):
    """The two phases of a request's work for a model, each with a queue and a measured rate."""

    #: Texts become model input: sanitized, tokenized, encoded as vectors, and rendered as windows.
    PREPARE = "prepare"
    #: The model reads the windows.
    RANK = "rank"


class ModelPhase(NamedTuple):
    """One phase of the work for one model.

    The work of RANK is measured in tokens of the model's input, that of PREPARE in tokens estimated from the texts.
    """

    phase: Phase
    model: str


class RankedWindow(NamedTuple):
    """A window as model input, its ranking, and in milliseconds its time in the queue and that of its batches."""

    window: Window
    ranking: WindowRanking
    queue_ms: float
    model_ms: float


@dataclass
class ModelCost:
    """The tokens of a request for one model: estimated from its texts, and measured as its windows are encoded.

    Attributes:
        query: cost of preparing the query.
        passages: cost of preparing each candidate; 1 if nothing is computed.
        prepare: cost of preparing the query and all candidates.
        bounds: bounds on the number of windows.
        windows: expected number of windows.
        rank: estimated cost of ranking all windows.
        encoded, encoded_tokens: number of the windows that are encoded so far, and of their tokens.
    """

    query: int
    passages: Sequence[int]
    prepare: int
    bounds: Cost
    windows: float
    rank: float
    encoded: int = 0
    encoded_tokens: int = 0

    @classmethod
    def of(cls, info: RankerInfo, query: Query, passages: Sequence[Passage], strategy: Strategy) -> ModelCost:
        """The cost, estimated from the texts and the bounds of the schedule; a token counts as 4 characters."""
        prepared, missing, missing_tokens = list[int](), 0, 0
        for passage in passages:
            tokens = 2 + min(len(passage.text) // 4, info.max_passage_tokens)
            known = passage.sparse if info.needs_sparse else passage.vector if info.needs_vectors else None
            prepared.append(tokens if known is None else 1)
            if passage.vector is None:
                missing += 1
                missing_tokens += tokens
        bounds = strategy.cost(len(passages))
        windows = (bounds.min_windows + bounds.max_windows) / 2
        n = min(len(passages), strategy.window_size)
        if info.needs_vectors:  # a passage is one token, and texts without a vector are encoded, too
            each = n + min(missing, info.max_encoded_passages) * (missing_tokens / max(1, missing))
        else:
            each = n * (sum(prepared) / max(1, len(prepared)))
        each = max(MIN_WINDOW_TOKENS, min(each, info.max_window_tokens))
        query_tokens = 2 + len(query.text) // 4
        return cls(query_tokens, prepared, query_tokens + sum(prepared), bounds, windows, windows * each)

    def add_windows(self, windows: int, tokens: int) -> float:
        """Counts windows that are encoded and will be ranked next; returns the remaining tokens, with these windows.

        The estimate for later windows is the average of the encoded ones.
        """
        self.encoded += windows
        self.encoded_tokens += tokens
        return max(0.0, self.windows - self.encoded) * (self.encoded_tokens / self.encoded) + tokens


@dataclass(eq=False)
class Request:
    """A request in the engine, which runs it once.

    Attributes:
        candidates: passages in first-stage order.
        stages: one stage, or up to three of a cascade; the last one has the request's own model. `begin` removes
            weights of the first stage that cannot have an effect.
        strategy: the description of the stages.
        warnings: why weights were removed.
        usage: the shared resources that the call uses; the engine counts the request's tokens in it.
        options: options of the answer. Options on model and strategy are not read, because `stages` has them.
        deadline_s: time on the event loop's clock; infinite without a deadline.
        remaining: phase → estimated tokens that remain, including those that are running.
        tags: phase → the caller's tag when a part of the request last began to run, see FairQueue.
        tokens_before: phase → number of tokens that had run in the phase when the request was first queued.
        costs: model → cost.
        info: description of the ranker of the request's own model.
        order: positions of the candidates in the best order so far, without `blank`.
        blank: positions of the passages without a text, which no model reads; they come last.
        prepared, prepared_query: position → prepared passage, and the prepared query, for the model of the stage.
        prepare_ms, queue_ms, model_ms, decode_ms: time of preparation, in queues, of models, and of their decoding.
        rounds: number of rounds that have been ranked.
        repairs: number of identifiers in generated permutations that were repaired.
        truncated_doc_ids: doc_ids of passages that a model read only in part.
        windows: traces of the ranked windows.
        read: positions of the passages that a model has read.
        unanswered: number of windows that kept their order because the model did not end its reasoning.
        last: the ranking of the latest window, after the scores of the first stage were added.
        weight: weight of the first stage in the first window.
        last_weight: weight of the first stage, or of the preranker, in the latest window.
    """

    query: Query
    candidates: tuple[Passage, ...]
    stages: Stages
    options: RankOptions = field(default_factory=RankOptions)
    deadline_s: float = math.inf
    usage: CallUsage = field(default_factory=CallUsage)

    remaining: dict[ModelPhase, float] = field(init=False, default_factory=dict)
    tags: dict[ModelPhase, float] = field(init=False, default_factory=dict)
    tokens_before: dict[ModelPhase, float] = field(init=False, default_factory=dict)
    costs: dict[str, ModelCost] = field(init=False, default_factory=dict)
    strategy: str = field(init=False, default="")
    warnings: list[str] = field(init=False, default_factory=list)

    info: RankerInfo = field(init=False)
    order: Sequence[int] = field(init=False, default=())
    blank: Sequence[int] = field(init=False, default=())
    prepared: dict[int, Passage] = field(init=False, default_factory=dict)
    prepared_query: Query = field(init=False)
    prepare_ms: float = field(init=False, default=0.0)
    queue_ms: float = field(init=False, default=0.0)
    model_ms: float = field(init=False, default=0.0)
    decode_ms: float = field(init=False, default=0.0)
    rounds: int = field(init=False, default=0)
    repairs: int = field(init=False, default=0)
    truncated_doc_ids: set[str] = field(init=False, default_factory=set)
    query_truncated: bool = field(init=False, default=False)
    windows: list[WindowTrace] = field(init=False, default_factory=list)
    read: set[int] = field(init=False, default_factory=set)
    unanswered: int = field(init=False, default=0)
    last: WindowRanking | None = field(init=False, default=None)
    weight: float = field(init=False, default=0.0)
    last_weight: float = field(init=False, default=0.0)
    _stage: RankStage = field(init=False)
    _stage_info: RankerInfo = field(init=False)
    _schedule: Schedule = field(init=False)

    @property
    def window_bounds(self) -> Cost:
        """Bounds on the number of windows of all stages."""
        fewest = most = 0
        for cost in self.costs.values():
            fewest, most = fewest + cost.bounds.min_windows, most + cost.bounds.max_windows
        return Cost(fewest, most)

    def begin(self, infos: Mapping[str, RankerInfo]) -> None:
        """Estimates the work, and moves passages without a text to `blank`.

        They are not moved if all models read them, or if no passage has a text.

        Args:
            infos: model → description of its ranker.

        Raises:
            RankerFailure: the request was run before.
        """
        if self.costs:
            raise RankerFailure("the engine ran this request before; this is a bug")
        self.info = infos[self.stages[-1].model]
        self.order = range(len(self.candidates))
        blank = [position for position in self.order if not self.candidates[position].text.strip()]
        readers = [infos[stage.model] for stage in self.stages if infos[stage.model].reorders]
        if blank and len(blank) < len(self.order) and not all(info.reads_blank for info in readers):
            self.order = [position for position in self.order if position not in {*blank}]
            self.blank = blank
        stages = list[RankStage]()
        for stage in self.stages:
            cost = ModelCost.of(infos[stage.model], self.query, self.candidates, stage.strategy)
            self.costs[stage.model] = cost
            self.remaining[ModelPhase(Phase.RANK, stage.model)] = cost.rank
            self.remaining[ModelPhase(Phase.PREPARE, stage.model)] = cost.prepare
            if warning := stage.warning(len(self.order)):
                self.warnings.append(warning)
                stage = replace(stage, weight=0.0)
            stages.append(stage)
        self.stages = tuple(stages)
        self.strategy = describe(self.stages)

    def begin_stage(self, stage: RankStage, info: RankerInfo) -> None:
        """Begins one of the stages; `info` describes its ranker."""
        self._stage, self._stage_info = stage, info
        self._schedule = stage.strategy.schedule(self.order)
        self.prepared, self.prepared_query = {}, self.query

    def next_round(self, rankings: Sequence[WindowRanking] | None = None) -> Round | None:
        """The next round of the stage; None if the stage has ended.

        Args:
            rankings: ranking of each window in the round before; None before the first round.
        """
        try:
            round_ = next(self._schedule) if rankings is None else self._schedule.send(rankings)
        except StopIteration as end:
            self.order = end.value
            return None
        self.order = round_.order or self.order
        return round_

    def add_prepared(
        self, positions: Sequence[int], prepared: PreparedTexts, queue_ms: float, prepare_ms: float
    ) -> None:
        """Adds the prepared passages of these positions, the prepared query, and the batch's times in milliseconds."""
        self.prepared.update(zip(positions, prepared.passages, strict=True))
        self.prepared_query = prepared.query
        self.truncated_doc_ids.update(prepared.truncated_doc_ids)
        self.query_truncated |= prepared.query.is_truncated
        self.queue_ms += queue_ms
        self.prepare_ms += prepare_ms

    def window(self, round_: Round, positions: Positions, query: Query, prepared: Mapping[int, Passage]) -> Window:
        """A window of the stage as model input, with the prepared query and the prepared passages by position."""
        stage, passages = self._stage, tuple(map(prepared.__getitem__, positions))
        is_last = round_.is_final and stage.model == self.stages[-1].model
        top_n = self.options.top_n if is_last and self.options.top_n < len(positions) else 0
        scores_before = tuple(self._scores_before(positions)) if stage.weight else ()
        return Window(query, passages, top_n, scores_before, stage.weight)

    def _scores_before(self, positions: Positions) -> Sequence[float]:
        """The scores of the first stage, or of the preranker, that are added to the scores of this stage.

        They are reciprocal ranks if the preranker's last window did not hold all these passages.
        """
        if self.last is None:
            return first_stage_scores([self.candidates[position].score for position in positions])
        if set(positions) <= set(self.windows[-1].positions):
            score_of = dict(zip(self.windows[-1].positions, self.last.scores, strict=True))
            return [score_of[position] for position in positions]
        return reciprocal_ranks(len(positions))

    def add_windows(self, windows: int, tokens: int) -> None:
        """Counts windows of the stage that are encoded and will be ranked next."""
        model = self._stage.model
        self.remaining[ModelPhase(Phase.RANK, model)] = self.costs[model].add_windows(windows, tokens)

    def add_round(self, round_: Round, ranked: Sequence[RankedWindow]) -> list[WindowRanking]:
        """Adds a round of the stage, and returns its rankings with the scores of the first stage and BM25 added.

        The windows waited and ran concurrently, so the time of the round is that of its slowest window.
        """
        info, rankings = self._stage_info, list[WindowRanking]()
        slowest = max(ranked, key=lambda done: done.queue_ms + done.model_ms)
        self.queue_ms += slowest.queue_ms
        self.model_ms += slowest.model_ms
        self.decode_ms += slowest.ranking.decode_cost.ms
        for positions, done in zip(round_.windows, ranked, strict=True):
            ranking = done.ranking
            if (done.window.weight or ranking.lexical) and not info.adds_first_stage:
                ranking = with_signals(ranking, done.window)
            rankings.append(ranking)
            decode_cost = done.ranking.decode_cost
            tokens = done.window.tokens_with(decode_cost)
            read = (positions, ranking.permutation, tokens, done.ranking.scores, info.score_kind)
            times = (done.queue_ms, done.model_ms, decode_cost.tokens)
            where = (self.rounds, self._stage.model, done.window.truncated)
            self.windows.append(WindowTrace(*read, *where, *times, done.ranking.cosines))
            for index in done.window.truncated:
                self.truncated_doc_ids.add(self.candidates[positions[index]].doc_id)
            self.repairs += ranking.repairs
            self.unanswered += ranking.is_unanswered
            self.read.update(positions if info.reorders and not ranking.is_unanswered else ())
        self.rounds += 1
        self.last_weight = rankings[-1].weight
        if self.last is None:
            self.weight = self.last_weight
        self.last = rankings[-1]
        return rankings
