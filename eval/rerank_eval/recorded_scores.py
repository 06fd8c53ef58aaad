"""Records the scores of models for lists once, and computes the order for any weight from them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from rerank.commands.run import console
from rerank.config import FusionModel
from rerank.engine.scores import candidate_scores, interpolate
from rerank.rankers.fusion import FusionRanker
from rerank.reranking.blocking import Reranker
from rerank.types import Candidate, CandidateSource, Passage, Query, RankOptions, StrategyKind, Window, WindowRanking
from rerank_eval.runner import Variant, run_variants
from rerank_eval.trace import RankedList


@dataclass(frozen=True, slots=True)
class ModelScores:
    """The scores of a model: query_id → doc_id → score. `processor_ms`: mean time of the processors for a query."""

    scores: Mapping[str, Mapping[str, float]]
    processor_ms: float


@dataclass(frozen=True, slots=True)
class OrderedList:
    """The doc_ids of a list in the order of a stage, and a function from some of them to their scores by that stage."""

    order: Sequence[str]
    scores: Callable[[Sequence[str]], Sequence[float]]

    @classmethod
    def of(cls, candidates: Sequence[Candidate]) -> OrderedList:
        """The order of the first stage, with the scores that the engine interpolates."""
        by_id = {each.passage.doc_id: each for each in candidates}
        return cls(list(by_id), lambda window: candidate_scores([by_id[doc_id] for doc_id in window])[0])

    def reranked(self, scores: Mapping[str, float], depth: int, weight: float) -> OrderedList:
        """The list after a model with these scores by doc_id read its first `depth` passages in one window.

        Args:
            weight: of this order's scores beside those of the model, as the engine interpolates them.
        """
        window = self.order[:depth]
        ranking = WindowRanking(tuple(scores[doc_id] for doc_id in window))
        if weight:
            ranking = interpolate(ranking, self.scores(window), weight)
        score_of = dict(zip(window, ranking.scores, strict=True))
        order = [*(window[place] for place in ranking.permutation), *self.order[depth:]]
        return OrderedList(order, lambda doc_ids: [score_of[doc_id] for doc_id in doc_ids])


@dataclass(frozen=True, slots=True)
class ReorderedLists:
    """The lists of all queries after a stage, by query_id, and its cost in milliseconds of the processors per query."""

    lists: Mapping[str, OrderedList]
    processor_ms: float = 0.0

    def then(self, model: ModelScores, depth: int, weight: float) -> ReorderedLists:
        """The stage after a model, see `OrderedList.reranked`."""
        lists = {q: each.reranked(model.scores[q], depth, weight) for q, each in self.lists.items()}
        return ReorderedLists(lists, self.processor_ms + model.processor_ms)


@dataclass(frozen=True, slots=True)
class Recorder:
    """Asks models for scores, one query at a time, and does not repeat what a killed run has recorded.

    Attributes:
        queries: by query_id.
        out: folder with one folder of a trace file for each name.
        fingerprint: every setting that decides the lists; a resumed run must have the same.
    """

    reranker: Reranker
    queries: Mapping[str, Query]
    out: Path
    fingerprint: Mapping[str, object]

    def first_stage(self, first_stage: str, depth: int) -> dict[str, list[Candidate]]:
        """The passages of the index that a search finds for each query, with scores and without texts."""

        def search(query_id: str) -> RankedList:
            found = self.reranker.search(self.queries[query_id], first_stage, depth, RankOptions("identity")).ranking
            candidates = [item.candidate for item in found.ranked]
            return RankedList(
                tuple(each.passage.doc_id for each in candidates),
                tuple(item.score for item in found.ranked),
                tuple(range(len(candidates))),
                {"scores": [(each.score, each.bm25_score) for each in candidates]},
            )

        rows = self._record("first-stage", {}, search)
        return {
            query_id: [
                Candidate(Passage(doc_id, ""), *scores)
                for doc_id, scores in zip(row.doc_ids, row.execution["scores"], strict=True)
            ]
            for query_id, row in rows.items()
        }

    def scores(
        self,
        name: str,
        model: str,
        fingerprint: Mapping[str, object],
        windows: Mapping[str, Sequence[CandidateSource]],
        clock: Callable[[], float] = time.process_time,
        weight: float = 0.0,
    ) -> ModelScores:
        """The scores of a model for the passages of a window of each query.

        Args:
            name: of the folder.
            fingerprint: every setting that decides the scores of a window.
            windows: by query_id.
            clock: seconds, whose differences are the cost.
            weight: of the first stage's scores in those of the model.
        """

        def score(query_id: str) -> RankedList:
            window, start_s = windows[query_id], clock()
            options = RankOptions(
                model, strategy=StrategyKind.SINGLE, window_size=max(2, len(window)), interpolation=weight
            )
            ranked = self.reranker.rerank(self.queries[query_id], window, options).ranked
            return RankedList(
                tuple(item.candidate.passage.doc_id for item in ranked),
                tuple(item.score for item in ranked),
                tuple(item.position for item in ranked),
                {"processor_ms": (clock() - start_s) * 1000},
            )

        read = {query_id: [each.doc_id for each in window] for query_id, window in windows.items()}
        rows = self._record(name, {**fingerprint, "windows": read}, score)
        return ModelScores(
            {query_id: dict(zip(row.doc_ids, row.scores, strict=True)) for query_id, row in rows.items()},
            fmean(row.execution["processor_ms"] for row in rows.values()),
        )

    def fused_orders(
        self,
        name: str,
        ranker: FusionRanker,
        settings: Sequence[FusionModel],
        windows: Mapping[str, Sequence[CandidateSource]],
        top: int,
    ) -> list[dict[str, list[str]]]:
        """The first doc_ids of each window by each of the settings of a fusion: query_id → doc_ids.

        Args:
            name: of the folder.
            windows: by query_id, with scores.
            top: number of doc_ids.
        """

        def rank(query_id: str) -> RankedList:
            query, window = self.queries[query_id], windows[query_id]
            found = self.reranker.rerank(query, window, RankOptions("identity")).ranked
            prepared = ranker.prepare(query, [item.candidate.passage for item in found])
            scores = tuple(source.score or 0.0 for source in window)
            asked = Window(prepared.query, prepared.passages, first_stage=scores)
            fused = ranker.rank_by(asked, settings) if window else [WindowRanking(())] * len(settings)
            return RankedList(
                tuple(source.doc_id for source in window),
                tuple(item.score for item in found),
                tuple(range(len(window))),
                {"orders": [each.permutation[:top] for each in fused]},
            )

        read = {query_id: [(each.doc_id, each.score) for each in window] for query_id, window in windows.items()}
        weights = [each.model_dump(mode="json") for each in settings]
        rows = self._record(
            name, {"model_revision": ranker.info.model_revision, "settings": weights, "windows": read}, rank
        )
        return [
            {q: [row.doc_ids[place] for place in row.execution["orders"][number]] for q, row in rows.items()}
            for number in range(len(settings))
        ]

    def _record(
        self, name: str, fingerprint: Mapping[str, object], rank: Callable[[str], RankedList]
    ) -> dict[str, RankedList]:
        variant = Variant(name, {**self.fingerprint, **fingerprint}, rank)
        responses = run_variants([variant], list(self.queries), self.out / name, 1, console)
        return {response.query_id: response.ranking for response in responses[name]}
