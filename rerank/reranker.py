"""Reranking and search in one process: models, index and engine. For the service, notebooks and evaluation."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from rerank.config import ServiceConfig
from rerank.engine.engine import Engine
from rerank.engine.job import Job
from rerank.engine.strategies import Strategy
from rerank.errors import DeadlineExceeded, InvalidRequest, NotConfigured
from rerank.models.encoder import Encoder
from rerank.registry import ModelDescription, ModelRegistry, load_models
from rerank.retrieval.dense import with_vector
from rerank.retrieval.feedback_search import FeedbackReport, FeedbackSearch
from rerank.retrieval.index import Index
from rerank.retrieval.query_update import FeedbackSettings
from rerank.types import Candidate, CandidateSource, FirstStage, Passage, Query, Ranking, RankOptions, ScoredDoc

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SearchResult:
    """A ranking of what the first stage found, which may be nothing."""

    ranking: Ranking
    first_stage: FirstStage
    hits: int
    first_stage_ms: float
    #: None where none was asked for.
    feedback: FeedbackReport | None = None


class AsyncReranker:
    """Answers while it is open as an async context. `load_reranker` makes one from a configuration.

    Args:
        config: the settings of the engine and the limits of requests.
        encoder: encodes queries for dense retrieval.
        index: what `search` reads, and what candidates may refer to.
        models: the models that requests may name.
    """

    def __init__(self, config: ServiceConfig, encoder: Encoder, index: Index | None, models: ModelRegistry) -> None:
        self.config = config
        self.index = index
        self._encoder = encoder
        self._models = models
        self._engine = Engine(models.rankers, config.engine)
        self._first_stage_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="first-stage")

    async def __aenter__(self) -> AsyncReranker:
        await self._engine.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._engine.__aexit__(*error)
        await asyncio.to_thread(self._first_stage_thread.shutdown)

    def models(self) -> list[ModelDescription]:
        """The configured models, the default one first."""
        return self._models.describe()

    async def rerank(
        self, query: Query, candidates: Sequence[CandidateSource], options: RankOptions, deadline: float | None = None
    ) -> Ranking:
        """The candidates' final order. `deadline` is on the event loop's clock, in seconds.

        Raises:
            NotFound: no such model, or a passage that the index does not hold.
            SelfTestFailed: the model is not served.
            NotConfigured: a candidate refers to the index, and there is none.
            InvalidRequest, Overloaded, DeadlineExceeded, ShuttingDown: see Engine.run.
        """
        model, strategy = self._models.resolve(options)
        return await self._run(model, strategy, query, self._resolve(candidates), options, deadline)

    async def search(
        self,
        query: Query,
        first_stage: FirstStage,
        depth: int,
        options: RankOptions,
        deadline: float | None = None,
        feedback: FeedbackSettings | None = None,
    ) -> SearchResult:
        """Retrieves `depth` candidates from the index, then orders them; with `feedback`, see FeedbackSearch.

        Raises as `rerank` does, and InvalidRequest where `feedback` finds no vector to move.
        """
        model, strategy = self._models.resolve(options)
        index = self._open_index()
        if feedback is not None and first_stage is FirstStage.BM25:
            raise InvalidRequest(
                "feedback", "bm25 has no query vector that could move; use dense or a hybrid first stage, or drop it"
            )
        retrieve = partial(self._retrieve, index, first_stage, depth)
        begun = time.perf_counter()
        query, candidates = await retrieve(query, deadline)
        first_stage_ms = (time.perf_counter() - begun) * 1000
        rank = partial(self._run, model, strategy, query)
        if feedback is None:
            ranking, report = await rank(candidates, options, deadline), None
        else:
            steps = FeedbackSearch(feedback, rank, retrieve, self.config.engine.answer_margin_s)
            ranking, report = await steps.run(query, candidates, options, deadline)
        return SearchResult(ranking, first_stage, len(candidates), first_stage_ms, report)

    async def _run(
        self,
        model: str,
        strategy: Strategy,
        query: Query,
        candidates: tuple[Candidate, ...],
        options: RankOptions,
        deadline: float | None,
    ) -> Ranking:
        job = Job(model, query, candidates, strategy, options.top_n, deadline, options.allow_partial)
        return await self._engine.run(job)

    async def _retrieve(
        self, index: Index, first_stage: FirstStage, depth: int, query: Query, deadline: float | None
    ) -> tuple[Query, tuple[Candidate, ...]]:
        """The query with its vector, and what was found for it."""

        def search() -> tuple[Query, list[ScoredDoc]]:
            bare = first_stage is FirstStage.BM25 or query.vector is not None
            encoded = query if bare else self._encoded(query)
            return encoded, index.retrievers[first_stage].search([encoded], depth)[0]

        try:
            async with asyncio.timeout_at(deadline):
                encoded, hits = await asyncio.get_running_loop().run_in_executor(self._first_stage_thread, search)
        except TimeoutError as error:
            raise DeadlineExceeded(
                f"deadline reached in the first stage ({first_stage.value}); allow more time"
            ) from error
        passages = index.store.passages([hit.doc_id for hit in hits])
        return encoded, tuple(Candidate(passage, hit.score) for passage, hit in zip(passages, hits, strict=True))

    def _encoded(self, query: Query) -> Query:
        """The query with its vector. Raises: InvalidRequest when the encoder would read its beginning only."""
        (tokens,), limit = self._encoder.token_counts([query.text]), self._encoder.max_text_tokens
        if tokens > limit:
            raise InvalidRequest(
                "query",
                f"the query is {tokens} tokens long, {self._encoder.id.name} reads at most {limit}; shorten it, or "
                "search by bm25",
                {"tokens": str(tokens), "limit": str(limit)},
            )
        return with_vector(self._encoder, query)

    def _resolve(self, sources: Sequence[CandidateSource]) -> tuple[Candidate, ...]:
        """Candidates with text, and with vectors where the index has them."""
        referred = [source.doc_id for source in sources if source.in_index]
        stored = {p.doc_id: p for p in self._open_index().store.passages(referred)} if referred else {}
        return tuple(Candidate(_passage(source, stored), source.score) for source in sources)

    def _open_index(self) -> Index:
        if self.index is None:
            raise NotConfigured(
                "this service runs without an index; start it with --index DIR, or send the passages' text"
            )
        return self.index


class Reranker:
    """AsyncReranker for code without an event loop: a notebook, a script. Use it in a `with` block.

    Raises as `load_reranker` does.
    """

    def __init__(self, config: ServiceConfig) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="reranker", daemon=True)
        self._inner = load_reranker(config)

    def __enter__(self) -> Reranker:
        self._thread.start()
        self._wait(self._inner.__aenter__())
        return self

    def __exit__(self, *error: object) -> None:
        self._wait(self._inner.__aexit__(*error))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def rerank(
        self, query: Query, candidates: Sequence[CandidateSource], options: RankOptions | None = None
    ) -> Ranking:
        """See AsyncReranker.rerank."""
        return self._wait(self._inner.rerank(query, candidates, options or RankOptions()))

    def search(
        self,
        query: Query,
        first_stage: FirstStage = FirstStage.HYBRID_RRF,
        depth: int = 100,
        options: RankOptions | None = None,
        feedback: FeedbackSettings | None = None,
    ) -> SearchResult:
        """See AsyncReranker.search."""
        return self._wait(self._inner.search(query, first_stage, depth, options or RankOptions(), feedback=feedback))

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def load_reranker(config: ServiceConfig) -> AsyncReranker:
    """Loads everything that the configuration names, and self-tests each model. One that fails is left out, and logged.

    Raises:
        ConfigError, CheckpointError, IndexMismatch: something that it names cannot be used.
    """
    encoder = Encoder(config.encoder, config.device)
    index = Index(config.index, encoder) if config.index else None
    return AsyncReranker(config, encoder, index, load_models(config.models, encoder, config.device))


def _passage(source: CandidateSource, stored: dict[str, Passage]) -> Passage:
    if not source.in_index:
        return Passage(source.doc_id, source.text or "")
    passage = stored[source.doc_id]
    return passage if source.text is None else replace(passage, text=source.text)
