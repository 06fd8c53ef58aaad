"""The steps of the reranker around the engine, which prepare a request for the engine and complete its ranking."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TypeVar

from rerank.engine.engine import Engine, timeout_at
from rerank.engine.request import Request
from rerank.engine.worker import SharedWorker
from rerank.models.encoder import Encoder
from rerank.rankers.base import Ranker, RankerInfo
from rerank.reranking.chunks import ChunkedDocuments
from rerank.reranking.registry import ModelRegistry
from rerank.reranking.relevance import with_relevance
from rerank.reranking.unordered import UnorderedList
from rerank.types import Passage, Ranking, SlicedWork

T = TypeVar("T")

#: About how many characters are read in a millisecond, without tokenizing them.
_CHARS_READ_PER_MS = 10_000
#: About how many characters are tokenized and divided into chunks in a millisecond.
_CHARS_DIVIDED_PER_MS = 800


class RerankerSteps:
    """The steps around the engine.

    Args:
        models: descriptions and rankers of the models.
        encoder: the service's encoder, which counts tokens and has the cache of vectors and the relevance curve.
        texts: the shared thread for work on texts.
    """

    def __init__(self, engine: Engine, models: ModelRegistry, encoder: Encoder, texts: SharedWorker) -> None:
        self._engine, self._models, self._encoder, self._texts = engine, models, encoder, texts

    async def rank(self, request: Request) -> Ranking:
        """Ranks the candidates. With `min_relevance`, results beyond `top_n` are returned, too.

        Unordered candidates are ordered by their texts first (`rerank.reranking.unordered`). Long documents are ranked
        by their best chunks (`rerank.reranking.chunks`).
        """
        if request.options.min_relevance is not None:
            request = replace(request, options=replace(request.options, top_n=0))
        given, unordered, chunked = request, None, None
        infos, caching, writers = list[RankerInfo](), list[Ranker](), set[str]()
        for stage in request.stages:
            infos.append(self._models.infos[stage.model])
            if infos[-1].kind == "generation":
                writers.add(stage.model)
            if self._encoder.vector_cache.max_bytes and infos[-1].has_cache:
                caching.append(self._models.rankers[stage.model])
        if not request.options.ordered:
            grouping = UnorderedList.of(request.query.text, request.candidates)
            unordered = await self._run(request, grouping, _CHARS_READ_PER_MS)
            request = unordered.request(request)
        if request.options.max_chunks_per_doc > 1 and (chunked := await self._chunked(request, infos)) is not None:
            request = chunked.request(request)
        if caching:
            known = _with_cached_vectors(request.candidates, caching)
            request = replace(request, candidates=tuple(await self._run(request, known, _CHARS_READ_PER_MS)))
        ranking = await self._engine.run(request)
        if writers:
            ranking = with_share_of_repairs(ranking, writers)
        ranking = with_relevance(ranking, infos[-1], self._encoder.relevance, request.candidates)
        if chunked is not None:
            ranking = chunked.ranking(ranking, given.options.top_n)
        if unordered is not None:
            ranking = unordered.ranking(ranking, given.options)
        return ranking

    async def _chunked(self, request: Request, infos: Sequence[RankerInfo]) -> ChunkedDocuments | None:
        """Divides the documents; None if the deadline comes first, so that the engine answers the late request."""
        margin_s = request.options.answer_margin_s if request.options.allow_partial else 0.0
        try:
            async with timeout_at(request.deadline_s - margin_s):
                return await self._run(
                    request, ChunkedDocuments.of(request, infos, self._encoder), _CHARS_DIVIDED_PER_MS
                )
        except TimeoutError:
            return None

    async def _run(self, request: Request, work: SlicedWork[T], chars_per_ms: int) -> T:
        """Runs work on the texts of a request: short work at once, longer work on the shared thread."""
        chars = sum(len(candidate.text) for candidate in request.candidates)
        return await self._texts.run(request.usage.name, work, chars / chars_per_ms)


def with_share_of_repairs(ranking: Ranking, writers: Collection[str]) -> Ranking:
    """Adds the number of identifiers in generated permutations, and a warning if some of them were repaired.

    Args:
        writers: names of the models that write permutations.
    """
    trace = ranking.trace
    generated = sum(len(window.positions) for window in trace.windows if window.model in writers)
    warning = ""
    if trace.repairs:
        repaired = f"{trace.repairs} of {generated} identifiers ({trace.repairs / generated:.0%})"
        warning = f"{repaired} in what the model wrote were repaired; passages that it did not name kept their order"
    warnings = "; ".join(filter(None, (trace.model_warning, warning)))
    return replace(ranking, trace=replace(trace, generated=generated, model_warning=warnings))


def _with_cached_vectors(passages: Sequence[Passage], rankers: Sequence[Ranker]) -> SlicedWork[list[Passage]]:
    found = list[Passage]()
    for passage in passages:
        for ranker in rankers:
            passage = ranker.with_cached(passage)
        found.append(passage)
        yield
    return found
