"""The steps of the reranker, in their order: which job the engine gets, and what becomes of its ranking."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import TypeAlias, cast

from rerank.engine.engine import Engine
from rerank.engine.job import RankJob, timeout_at
from rerank.engine.worker import SharedWorker
from rerank.models.encoder import Encoder
from rerank.rankers.base import CachingRanker
from rerank.reranking.chunks import ChunkedDocuments
from rerank.reranking.registry import ModelRegistry
from rerank.reranking.relevance import at_least, with_relevance
from rerank.reranking.unordered import UnorderedList
from rerank.types import InSlices, Passage, Ranking, RankOptions

#: Characters that are read once in a millisecond, and that are tokenized and divided in one, about.
_CHARS_READ_PER_MS, _CHARS_DIVIDED_PER_MS = 10_000, 800

#: Ranks a job.
Rank: TypeAlias = Callable[[RankJob], Awaitable[Ranking]]


class RerankerSteps:
    """The steps around the engine.

    Args:
        texts: the thread for work on texts.

    Attributes:
        ranking: (rank, job) → ranking, the outermost first: each may give `rank`, which is all that is behind it,
            another job, and makes the ranking of its own job from the one that it gets back.
    """

    def __init__(self, engine: Engine, models: ModelRegistry, encoder: Encoder, texts: SharedWorker) -> None:
        self._engine, self._models, self._encoder, self._texts = engine, models, encoder, texts
        self.ranking = (self._unordered, self._chunks, self._cached_vectors, self._relevance, self._repairs)

    async def rank(self, job: RankJob) -> Ranking:
        """Ranks the candidates among which `chosen` chooses."""
        rank: Rank = self._engine.run
        for step in reversed(self.ranking):
            rank = partial(step, rank)
        return await rank(replace(job, options=without_top_n(job.options)))

    async def _unordered(self, rank: Rank, job: RankJob) -> Ranking:
        """Candidates without a meaningful order are put in one by their texts (`rerank.reranking.unordered`)."""
        if job.options.ordered:
            return await rank(job)
        grouping = UnorderedList.of(job.query.text, job.candidates)
        expected_ms = _chars(job.candidates) / _CHARS_READ_PER_MS
        unordered = await self._texts.run(job.share.name, grouping, expected_ms)
        return unordered.ranking(await rank(unordered.job(job)), job.options)

    async def _chunks(self, rank: Rank, job: RankJob) -> Ranking:
        """Documents are ranked by their best chunks (`rerank.reranking.chunks`); undivided if the deadline is first."""
        if job.options.max_chunks_per_doc < 2:
            return await rank(job)
        infos = [self._models.infos[step.model] for step in job.steps]
        dividing = ChunkedDocuments.of(job, infos, self._encoder)
        expected_ms = _chars(job.candidates) / _CHARS_DIVIDED_PER_MS
        margin_s = job.options.answer_margin_s if job.options.allow_partial else 0.0
        try:
            async with timeout_at(job.deadline_s - margin_s):
                chunked = await self._texts.run(job.share.name, dividing, expected_ms)
        except TimeoutError:
            return await rank(job)  # ends as a late request does
        return chunked.ranking(await rank(chunked.job(job)), job.options.top_n)

    async def _cached_vectors(self, rank: Rank, job: RankJob) -> Ranking:
        """Adds vectors that earlier requests computed of the same texts, so that no work is expected for them."""
        rankers = [self._models.rankers[step.model] for step in job.steps]
        caching = [cast(CachingRanker, ranker) for ranker in rankers if _is_caching(type(ranker))]
        if not (caching and self._encoder.vector_cache.max_bytes):
            return await rank(job)  # without a turn on the thread, a sixth of a short request's time
        expected_ms = _chars(job.candidates) / _CHARS_READ_PER_MS
        looking_up = _with_cached_vectors(job.candidates, caching)
        passages = await self._texts.run(job.share.name, looking_up, expected_ms)
        return await rank(replace(job, candidates=tuple(passages)))

    async def _relevance(self, rank: Rank, job: RankJob) -> Ranking:
        """Results get their relevance, of what was read of them."""
        info = self._models.infos[job.steps[-1].model]
        return with_relevance(await rank(job), info, self._encoder.relevance, job.candidates)

    async def _repairs(self, rank: Rank, job: RankJob) -> Ranking:
        """Generated orders are told apart from repaired ones, which may be no more than the order before them."""
        ranking = await rank(job)
        writers = {step.model for step in job.steps if self._models.infos[step.model].kind == "generation"}
        return with_share_of_repairs(ranking, writers) if writers else ranking


def with_share_of_repairs(ranking: Ranking, writers: Collection[str]) -> Ranking:
    """Adds the number of places in generated permutations, and a warning if some of them were repaired.

    Args:
        writers: names of the models that write permutations.
    """
    trace = ranking.trace
    generated = sum(len(window.positions) for window in trace.windows if window.model in writers)
    warning = ""
    if trace.repairs:
        share = f"{trace.repairs} of {generated} places ({trace.repairs / generated:.0%})"
        warning = f"{share} in what the model wrote were repaired; passages that it did not name kept their order"
    told = "; ".join(filter(None, (trace.model_warning, warning)))
    return replace(ranking, trace=replace(trace, generated=generated, model_warning=told))


@cache
def _is_caching(ranker_type: type) -> bool:
    return issubclass(ranker_type, CachingRanker)


def without_top_n(options: RankOptions) -> RankOptions:
    """Asks for all candidates if some of them are left out afterwards."""
    return options if options.min_relevance is None else replace(options, top_n=0)


def chosen(ranking: Ranking, options: RankOptions) -> Ranking:
    """Leaves out results with less relevance than the request asks for; the first `top_n` of the others stay."""
    if options.min_relevance is None:
        return ranking
    return at_least(ranking, options.min_relevance, options.top_n)


def _with_cached_vectors(passages: Sequence[Passage], rankers: Sequence[CachingRanker]) -> InSlices[list[Passage]]:
    found = list[Passage]()
    for passage in passages:
        for ranker in rankers:
            passage = ranker.with_cached_vector(passage)
        found.append(passage)
        yield
    return found


def _chars(candidates: Sequence[Passage]) -> int:
    return sum(len(candidate.text) for candidate in candidates)
