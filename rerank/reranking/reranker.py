"""AsyncReranker: reranking and search in this process, for the service and for other code with an event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import ParamSpec, TypeAlias, TypeVar

from rerank.config import ServiceConfig
from rerank.engine.engine import Engine
from rerank.engine.relevance import at_least
from rerank.engine.request import RankRequest
from rerank.engine.strategies import Steps
from rerank.engine.texts import TextThreads
from rerank.errors import DeadlineExceeded, InvalidRequest, NotConfigured
from rerank.models.encoder import Encoder
from rerank.models.sparse_encoder import SparseEncoder
from rerank.models.vector_cache import VectorCache
from rerank.rankers.base import CachingRanker, Ranker, ServedRanker
from rerank.rankers.first_stage_correlation import CallerCorrelations
from rerank.readers.candidates import candidate_source
from rerank.reranking.chunks import DividedDocuments
from rerank.reranking.registry import ModelDescription, ModelRegistry, load_models
from rerank.reranking.unordered import UnorderedList
from rerank.retrieval.dense import with_vector
from rerank.retrieval.feedback_search import FeedbackReport, FeedbackSearch
from rerank.retrieval.index import Index
from rerank.types import (
    Candidate,
    CandidateLike,
    CandidateSource,
    FeedbackMethod,
    FeedbackSettings,
    FirstStage,
    FirstStageKind,
    InSlices,
    Passage,
    Query,
    Ranking,
    RankOptions,
    candidate_list,
    with_title,
)
from rerank.util.text_table import ShownAsTable, TableRow

T = TypeVar("T")
P = ParamSpec("P")
#: Characters that are read once in a millisecond, and that are tokenized and divided in one, about.
_CHARS_READ_PER_MS, _CHARS_DIVIDED_PER_MS = 10_000, 800
#: A block in which so many expected tokens of a caller are in work. Raises: Overloaded if it allows no more.
Queueing: TypeAlias = Callable[[float], AbstractContextManager[None]]
#: Candidates with their texts.
Found: TypeAlias = tuple[Candidate, ...]


@dataclass(frozen=True, slots=True)
class SearchResult(ShownAsTable):
    """The ranking of the passages that the first stage found, possibly none."""

    ranking: Ranking
    first_stage: FirstStage
    hits: int
    first_stage_ms: float
    #: None if the search had no relevance feedback.
    feedback: FeedbackReport | None = None

    def __repr__(self) -> str:
        return f"<SearchResult: {self.hits} hits of {self.first_stage}, {self.ranking!r}>"

    def table_rows(self) -> list[TableRow]:
        return self.ranking.table_rows()


class AsyncReranker:
    """Reranking and search on an event loop. Use it in an `async with` block; `load_reranker` creates one.

    Args:
        config: settings of the engine and limits of requests.
        encoder: encodes queries for dense retrieval.
        index: read by `search`, and by candidates that refer to it.
        models: the models that requests may name.

    Attributes:
        engine: runs the requests; metrics and traces observe its work.
        correlations: means over the lists of each caller, which show whether `first_stage_kind` is right.
    """

    def __init__(self, config: ServiceConfig, encoder: Encoder, index: Index | None, models: ModelRegistry) -> None:
        self.config = config
        self.index = index
        self._encoder = encoder
        self._models = models
        self.engine = Engine(models.rankers, config.engine)
        self.correlations = CallerCorrelations()
        self._texts = TextThreads(config.engine.age_factor)
        self._first_stage_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="first-stage")
        #: One thread, because several would keep the event loop from the interpreter for longer.
        self._conversion_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="conversion")

    def __repr__(self) -> str:
        models = ", ".join(f"{model.name}{' (default)' if model.is_default else ''}" for model in self.models())
        index = f"index of {self.index.manifest.passages:,} passages" if self.index else "no index"
        return f"<{type(self).__name__}: {models}; {index}>"

    async def __aenter__(self) -> AsyncReranker:
        await self.engine.__aenter__()
        self._texts.open()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.engine.__aexit__(*error)
        await self._texts.close()
        await asyncio.to_thread(self._first_stage_thread.shutdown)
        await asyncio.to_thread(self._conversion_thread.shutdown)

    async def convert(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The function's result, computed on the thread that converts large messages while other calls are served.

        Converting 16 MB takes 50 ms.
        """
        work = partial(function, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._conversion_thread, work)

    @property
    def vector_cache(self) -> VectorCache:
        """The vectors of texts that requests brought along."""
        return self._encoder.vector_cache

    @property
    def rankers(self) -> Mapping[str, Ranker | ServedRanker]:
        """The rankers of the models by name, for code that runs windows without the engine."""
        return self._models.rankers

    def models(self) -> list[ModelDescription]:
        """The configured models, the default one first."""
        return self._models.describe()

    def cut(self, texts: Sequence[str], max_tokens: int) -> list[str]:
        """The texts, each cut to its first `max_tokens` tokens of the encoder, if any model reads more than that."""
        if max_tokens >= max(model.info.max_passage_tokens for model in self.models()):
            return list(texts)
        return [self._encoder.cut(text, max_tokens) for text in texts]

    async def rerank(
        self,
        query: Query | str,
        candidates: Iterable[CandidateLike],
        options: RankOptions,
        deadline: float | None = None,
        caller: str = "",
        queueing: Queueing | None = None,
    ) -> Ranking:
        """Reranks the candidates. `deadline` is in seconds on the event loop's clock.

        Args:
            candidates: in a form of CandidateLike; in first-stage order, best first, unless `options.ordered` is false.
            caller: callers that always wait have equal shares of the engine.
            queueing: holds the caller to its tokens in work; None: it has no bound.

        Raises: TypeError for a candidate of another form; RerankError, see ModelRegistry.resolve and Engine.run.
        """
        query, options = Query.of(query), self._with_kind(options, self.config.first_stage_kind)
        steps = self._models.resolve(options, query.instruction)
        found = await self._resolve(candidates)
        if self.vector_cache.max_bytes:
            found = await self._filled(found, steps, caller)
        request = RankRequest(query, found, steps, options, deadline, caller)
        run = self._run if options.ordered else self._run_unordered
        ranking = await run(request, queueing)
        ranking = self._with_mean(ranking, FirstStageKind(options.first_stage_kind), caller)
        return ranking if options.min_relevance is None else at_least(ranking, options.min_relevance)

    @staticmethod
    def _with_kind(options: RankOptions, kind: FirstStageKind) -> RankOptions:
        """The options with the kind of the first stage, unless they name it."""
        return options if options.first_stage_kind else replace(options, first_stage_kind=kind)

    def _with_mean(self, ranking: Ranking, kind: FirstStageKind, caller: str) -> Ranking:
        """The ranking with the mean correlation over the caller's lists, in which it counts."""
        report = ranking.trace.interpolation
        if report is None or report.correlation is None:
            return ranking
        report = replace(report, of_caller=self.correlations.add(caller, kind, report.correlation))
        return replace(ranking, trace=replace(ranking.trace, interpolation=report))

    async def _run_unordered(self, request: RankRequest, queueing: Queueing | None) -> Ranking:
        """The ranking of candidates whose order carries no meaning, see `rerank.reranking.unordered`."""
        grouping = UnorderedList.of(request.query.text, request.candidates)
        unordered = await self._texts.run(request.caller, grouping, _chars(request.candidates) / _CHARS_READ_PER_MS)
        options = replace(request.options, ordered=unordered.has_scores)  # scores give the texts a meaningful order
        steps, distinct = unordered.steps(request.steps), unordered.distinct
        ranking = await self._run(replace(request, candidates=distinct, steps=steps, options=options), queueing)
        return unordered.ranking(ranking, request.steps, options.top_n)

    async def search(
        self,
        query: Query | str,
        first_stage: FirstStage | str,
        depth: int,
        options: RankOptions,
        deadline: float | None = None,
        feedback: FeedbackSettings | FeedbackMethod | str | None = None,
        caller: str = "",
        queueing: Queueing | None = None,
    ) -> SearchResult:
        """Retrieves `depth` candidates from the index and reranks them; with `feedback`, see FeedbackSearch.

        Args:
            query, first_stage: themselves, or their text and name.
            depth: number of candidates.
            options, caller, queueing: as for `rerank`.
            deadline: in seconds on the event loop's clock.
            feedback: settings, or the name of a method, for relevance feedback.

        Raises:
            InvalidRequest: the query is empty, an unknown name, `feedback` was requested for a first stage without a
                query vector, or `options.ordered` is false.
            NotConfigured: there is no index.
            DeadlineExceeded: the deadline came in the first stage.
            RerankError: as `rerank` raises.
        """
        query, first_stage = Query.of(query), FirstStage.of("first_stage", first_stage)
        options = self._with_kind(options, first_stage.kind)
        if not options.ordered:
            raise InvalidRequest("ordered", "the first stage of a search gives an ordered list; leave the option out")
        steps = self._models.resolve(options, query.instruction)
        feedback = FeedbackSettings.of(feedback) if feedback is not None else None
        index = self._open_index()
        if feedback is not None and not first_stage.reads_vectors:
            problem = f"{first_stage} has no query vector to update; use dense or a hybrid first stage with it"
            raise InvalidRequest("feedback", f"{problem}, or no feedback")
        retrieve = partial(self._retrieve, index, first_stage, depth)
        start_s = time.perf_counter()
        query, candidates = await retrieve(query, deadline)
        first_stage_ms = (time.perf_counter() - start_s) * 1000
        rank = partial(self._rank, steps, caller, queueing, query)
        if feedback is None:
            ranking, report = await rank(candidates, options, deadline), None
        else:
            margin_s = self.config.engine.answer_margin_s
            feedback_search = FeedbackSearch(feedback, rank, retrieve, margin_s, self._first_stage_thread)
            ranking, report = await feedback_search.run(query, candidates, options, deadline)
        ranking = ranking if options.min_relevance is None else at_least(ranking, options.min_relevance)
        return SearchResult(ranking, first_stage, len(candidates), first_stage_ms, report)

    async def _rank(
        self,
        steps: Steps,
        caller: str,
        queueing: Queueing | None,
        query: Query,
        found: Found,
        options: RankOptions,
        deadline: float | None,
    ) -> Ranking:
        return await self._run(RankRequest(query, found, steps, options, deadline, caller), queueing)

    async def _run(self, request: RankRequest, queueing: Queueing | None) -> Ranking:
        if request.options.max_chunks_per_doc > 1:
            return await self._run_divided(request, queueing)
        if queueing is None:
            return await self.engine.run(request)
        with queueing(self.engine.expected_tokens(request)):
            return await self.engine.run(request)

    async def _run_divided(self, request: RankRequest, queueing: Queueing | None) -> Ranking:
        """Ranks documents by their best parts (`rerank.reranking.chunks`); undivided if the deadline comes first."""
        options = replace(request.options, max_chunks_per_doc=0)
        margin = self.config.engine.answer_margin_s if options.allow_partial else 0.0
        try:
            async with asyncio.timeout_at(None if request.deadline_s is None else request.deadline_s - margin):
                divided = await self._texts.run(
                    request.caller, self._divided(request), _chars(request.candidates) / _CHARS_DIVIDED_PER_MS
                )
        except TimeoutError:
            return await self._run(replace(request, options=options), queueing)  # ends as a late request does
        parts = replace(request, candidates=divided.candidates, steps=divided.steps, options=divided.options(options))
        return divided.ranking(await self._run(parts, queueing), options.top_n)

    def _divided(self, request: RankRequest) -> InSlices[DividedDocuments]:
        """The documents in parts, with the vectors of those parts that came before."""
        infos = [self._models.rankers[step.model].info for step in request.steps]
        divided = yield from DividedDocuments.of(request, infos, self._encoder.token_ends)
        if not self.vector_cache.max_bytes:
            return divided
        passages = [part.candidate.passage for part in divided.parts]
        return divided.with_passages((yield from self._filled_passages(passages, divided.steps)))

    async def _retrieve(
        self, index: Index, first_stage: FirstStage, depth: int, query: Query, deadline: float | None
    ) -> tuple[Query, Found]:
        """The query with its vector, and its candidates."""

        def search() -> tuple[Query, Found]:
            needs_vector = first_stage.reads_vectors and query.vector is None
            encoded = self._with_vector(query) if needs_vector else query
            return encoded, index.candidates(first_stage, encoded, depth)

        try:
            async with asyncio.timeout_at(deadline):
                return await asyncio.get_running_loop().run_in_executor(self._first_stage_thread, search)
        except TimeoutError as error:
            problem = f"deadline reached in the first stage ({first_stage.value}); allow more time"
            raise DeadlineExceeded(problem) from error

    def _with_vector(self, query: Query) -> Query:
        """The query with its vector. Raises: InvalidRequest if the query is longer than the encoder reads."""
        (tokens,), limit = self._encoder.token_counts([query.text]), self._encoder.max_text_tokens
        if tokens > limit:
            raise InvalidRequest(
                "query",
                f"the query is {tokens} tokens long, but {self._encoder.id.name} reads at most {limit}; shorten it, or "
                "search by bm25",
                {"tokens": str(tokens), "limit": str(limit)},
            )
        return with_vector(self._encoder, query)

    async def _resolve(self, candidates: Iterable[CandidateLike]) -> Found:
        """The candidates with their text, and with their vectors if they are in the index."""
        sources = [
            each if isinstance(each, CandidateSource) else candidate_source(each, place)
            for place, each in enumerate(candidate_list(candidates))
        ]
        doc_ids = [source.doc_id for source in sources if source.in_index]
        found = await self.convert(self._open_index().store.passages, doc_ids) if doc_ids else []
        stored = {passage.doc_id: passage for passage in found}
        return tuple(Candidate(_passage(source, stored), source.score) for source in sources)

    async def _filled(self, candidates: Found, steps: Steps, caller: str) -> Found:
        """The candidates, with what is known of texts that came before; so admission expects no work for them."""
        filling = self._filled_passages([candidate.passage for candidate in candidates], steps)
        passages = await self._texts.run(caller, filling, _chars(candidates) / _CHARS_READ_PER_MS)
        return tuple(replace(each, passage=passage) for each, passage in zip(candidates, passages, strict=True))

    def _filled_passages(self, passages: Iterable[Passage], steps: Steps) -> InSlices[list[Passage]]:
        rankers = [self._models.rankers[step.model] for step in steps]
        caching, filled = [ranker for ranker in rankers if isinstance(ranker, CachingRanker)], list[Passage]()
        for passage in passages:
            for ranker in caching:
                passage = ranker.filled(passage)
            filled.append(passage)
            yield
        return filled

    def _open_index(self) -> Index:
        if self.index is None:
            raise NotConfigured(
                "this service runs without an index; start it with --index DIR, or send the text of the passages"
            )
        return self.index


def load_reranker(config: ServiceConfig) -> AsyncReranker:
    """Loads the encoder, the index and the models of a configuration.

    Models that cannot be loaded or fail their self-test are not served.

    Raises:
        ConfigError: a setting cannot be used.
        CheckpointError: the encoder cannot be loaded, or no model can.
        IndexMismatch: the index was built with another encoder.
    """
    engine = config.engine
    encoder = Encoder(config.encoder, config.device, config.encoder_name or "", engine.text_vector_cache_bytes)
    sparse_encoder = cache(partial(SparseEncoder, config.sparse_encoder, config.device, engine.text_vector_cache_bytes))
    index = Index(config.index, encoder, sparse_encoder) if config.index else None
    models = load_models(config.models, encoder, config.device, sparse_encoder)
    return AsyncReranker(config, encoder, index, models)


def _passage(source: CandidateSource, stored: dict[str, Passage]) -> Passage:
    """The passage that is ranked; it begins with its title, if the caller gives one."""
    passage = stored[source.doc_id] if source.in_index else Passage(source.doc_id, "")
    text = passage.text if source.text is None else source.text
    titled = with_title(text, source.title) if source.title else text
    return replace(passage, text=titled, title=source.title, prefix_chars=len(titled) - len(text))


def _chars(candidates: Sequence[Candidate]) -> int:
    return sum(len(candidate.passage.text) for candidate in candidates)
