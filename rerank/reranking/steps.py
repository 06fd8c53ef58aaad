"""The steps of the reranker, in their order: which request the engine gets, and what becomes of its ranking."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TypeVar

from rerank.engine.engine import Engine
from rerank.engine.request import Request, timeout_at
from rerank.engine.worker import SharedWorker
from rerank.models.encoder import Encoder
from rerank.rankers.base import Ranker
from rerank.reranking.chunks import ChunkedDocuments
from rerank.reranking.registry import ModelRegistry
from rerank.reranking.relevance import at_least, with_relevance
from rerank.reranking.unordered import UnorderedList
from rerank.types import Passage, Ranking, RankOptions, SlicedWork

T = TypeVar("T")

#: Characters that are read once in a millisecond, and that are tokenized and divided in one, about.
_CHARS_READ_PER_MS, _CHARS_DIVIDED_PER_MS = 10_000, 800


class RerankerSteps:
    """The steps around the engine.

    Args:
        texts: the thread for work on texts.
    """

    def __init__(self, engine: Engine, models: ModelRegistry, encoder: Encoder, texts: SharedWorker) -> None:
        self._engine, self._models, self._encoder, self._texts = engine, models, encoder, texts

    async def rank(self, request: Request) -> Ranking:
        """Ranks the candidates among which `chosen` chooses.

        The order of candidates that have none comes from their texts (`rerank.reranking.unordered`). Long documents are
        ranked by their best chunks (`rerank.reranking.chunks`).
        """
        given = request = replace(request, options=without_top_n(request.options))
        unordered = chunked = None
        if not request.options.ordered:
            grouping = UnorderedList.of(request.query.text, request.candidates)
            unordered = await self._run(request, grouping, _CHARS_READ_PER_MS)
            request = unordered.request(request)
        if request.options.max_chunks_per_doc > 1 and (chunked := await self._chunked(request)) is not None:
            request = chunked.request(request)
        if caching := self._caching_rankers(request):
            known = _with_cached_vectors(request.candidates, caching)
            request = replace(request, candidates=tuple(await self._run(request, known, _CHARS_READ_PER_MS)))
        ranking = await self._engine.run(request)
        infos = {stage.model: self._models.infos[stage.model] for stage in request.stages}
        if writers := {model for model, info in infos.items() if info.kind == "generation"}:
            ranking = with_share_of_repairs(ranking, writers)
        ranking = with_relevance(ranking, infos[request.stages[-1].model], self._encoder.relevance, request.candidates)
        if chunked is not None:
            ranking = chunked.ranking(ranking, given.options.top_n)
        if unordered is not None:
            ranking = unordered.ranking(ranking, given.options)
        return ranking

    async def _chunked(self, request: Request) -> ChunkedDocuments | None:
        """Divides the documents; None if the deadline comes first, and the request ends as a late one does."""
        infos = [self._models.infos[stage.model] for stage in request.stages]
        margin_s = request.options.answer_margin_s if request.options.allow_partial else 0.0
        try:
            async with timeout_at(request.deadline_s - margin_s):
                return await self._run(
                    request, ChunkedDocuments.of(request, infos, self._encoder), _CHARS_DIVIDED_PER_MS
                )
        except TimeoutError:
            return None

    def _caching_rankers(self, request: Request) -> list[Ranker]:
        """The rankers that know vectors which earlier requests computed of the same texts."""
        if not self._encoder.vector_cache.max_bytes:
            return []
        rankers = [self._models.rankers[stage.model] for stage in request.stages]
        return [ranker for ranker in rankers if ranker.info.has_cache]

    async def _run(self, request: Request, work: SlicedWork[T], chars_per_ms: int) -> T:
        """Runs work on the texts of a request, which is done at once if it is short."""
        chars = sum(len(candidate.text) for candidate in request.candidates)
        return await self._texts.run(request.share.name, work, chars / chars_per_ms)


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


def without_top_n(options: RankOptions) -> RankOptions:
    """Asks for all candidates if some of them are left out afterwards."""
    return options if options.min_relevance is None else replace(options, top_n=0)


def chosen(ranking: Ranking, options: RankOptions) -> Ranking:
    """Leaves out results with less relevance than the request asks for; the first `top_n` of the others stay."""
    if options.min_relevance is None:
        return ranking
    return at_least(ranking, options.min_relevance, options.top_n)


def _with_cached_vectors(passages: Sequence[Passage], rankers: Sequence[Ranker]) -> SlicedWork[list[Passage]]:
    found = list[Passage]()
    for passage in passages:
        for ranker in rankers:
            passage = ranker.with_cached(passage)
        found.append(passage)
        yield
    return found
