"""AsyncReranker: reranking and search in this process, for the service and for other code with an event loop."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import ParamSpec, TypeVar

import torch

from rerank.config import ServiceConfig
from rerank.config.hub_models import download_models
from rerank.config.models import needs_sparse
from rerank.engine.accounts import CallUsage
from rerank.engine.engine import Engine, timeout_at
from rerank.engine.request import Request
from rerank.engine.worker import SharedWorker
from rerank.errors import CheckpointError, DeadlineExceeded, InvalidRequest, NotConfigured
from rerank.models.encoder import Encoder
from rerank.models.sparse_encoder import SparseEncoder
from rerank.models.vector_cache import VectorCache
from rerank.rankers.base import Ranker
from rerank.rankers.failed import FailedRanker
from rerank.readers.candidates import passage_of
from rerank.reranking.load_models import ModelLoader
from rerank.reranking.registry import LazyModels, ModelDescription, ModelRegistry, load_models
from rerank.reranking.relevance import at_least
from rerank.reranking.steps import RerankerSteps
from rerank.retrieval.feedback import FeedbackReport, FeedbackSearch
from rerank.retrieval.index import Index
from rerank.types import (
    CandidateLike,
    FeedbackMethod,
    FeedbackSettings,
    FirstStage,
    FirstStageKind,
    Passage,
    Query,
    Ranking,
    RankOptions,
    candidate_list,
    with_title,
)

log = logging.getLogger(__name__)
T = TypeVar("T")
P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The ranking of the passages that the first stage found.

    Attributes:
        hits: number of passages that the first stage found; may be 0.
        first_stage_ms: duration of the first stage in milliseconds.
        feedback: result of relevance feedback; None if there was none.
    """

    ranking: Ranking
    first_stage: FirstStage
    hits: int
    first_stage_ms: float
    feedback: FeedbackReport | None = None

    def __repr__(self) -> str:
        return f"<SearchResult: {self.hits} hits of {self.first_stage}, {self.ranking!r}>"

    def __str__(self) -> str:
        return str(self.ranking)


class AsyncReranker:
    """Reranking and search on an event loop. Use it in an `async with` block; `load_reranker` creates one.

    Args:
        config: settings of the engine and limits of requests.
        encoder: the encoder of the service, which encodes queries for dense retrieval and cuts texts.
        index: the index for `search` and for candidates with `in_index`; None if there is none.
        models: the models that requests may name.
        loader: loads models on request; None for the default loader.

    Attributes:
        engine: runs the requests; metrics and traces observe its work.
    """

    def __init__(
        self,
        config: ServiceConfig,
        encoder: Encoder,
        index: Index | None,
        models: ModelRegistry,
        loader: ModelLoader | None = None,
    ) -> None:
        self.config = config
        self.index = index
        self._encoder = encoder
        self._models = models
        self.engine = Engine(models.rankers, config.engine, models.infos)
        self._lazy = LazyModels(config.models, models, self.engine, loader or ModelLoader(encoder, config.device))
        self._texts, self._searches = SharedWorker("work on texts"), SharedWorker("search")
        self._steps = RerankerSteps(self.engine, models, encoder, self._texts)

    def __repr__(self) -> str:
        models = ", ".join(f"{model.name}{' (default)' if model.is_default else ''}" for model in self.models())
        index = f"index of {self.index.manifest.passages:,} passages" if self.index else "no index"
        return f"<{type(self).__name__}: {models}; {index}>"

    async def __aenter__(self) -> AsyncReranker:
        await self.engine.__aenter__()
        self._lazy.open()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._lazy.close()
        await self.engine.__aexit__(*error)
        self._texts.close()
        self._searches.close()

    async def convert(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Calls a function on a thread and returns its result; parsing 16 MB would hold up the event loop for 50 ms.

        Raises: ShuttingDown; the exception of the function.
        """
        return await self._texts.call("", partial(function, *args, **kwargs))

    @property
    def vector_cache(self) -> VectorCache:
        """The cache of the vectors of texts in requests."""
        return self._encoder.vector_cache

    @property
    def rankers(self) -> Mapping[str, Ranker]:
        """The rankers of the models by name, for code that runs windows without the engine."""
        return self._models.rankers

    def models(self) -> list[ModelDescription]:
        """The configured models, the default one first."""
        hangs = self.engine.problems
        return [replace(model, problem=model.problem or hangs.get(model.name, "")) for model in self._models.describe()]

    def cut(self, texts: Sequence[str], max_tokens: int) -> list[str]:
        """The first `max_tokens` tokens of each text, as the encoder counts; whole texts if no model reads more."""
        if max_tokens >= max(model.info.max_passage_tokens for model in self.models()):
            return list(texts)
        return [self._encoder.cut(text, max_tokens) for text in texts]

    async def rerank(
        self,
        query: Query | str,
        candidates: Iterable[CandidateLike],
        options: RankOptions,
        deadline_s: float = math.inf,
        usage: CallUsage | None = None,
    ) -> Ranking:
        """Reranks the candidates.

        Args:
            candidates: candidates in a form of CandidateLike; in first-stage order, best first, unless
                `options.ordered` is false.
            deadline_s: time on the event loop's clock; infinite for none.
            usage: the shared resources that the call uses; None for a caller without a name that uses none yet.

        Raises:
            InvalidRequest: a candidate has another form.
            RerankError: see ModelRegistry.resolve and Engine.run.
        """
        usage = usage or CallUsage()
        query, passages = await self._from_index(Query.of(query), candidates)  # before a model is loaded
        ready = self._lazy.ready(options, query.instruction, self.config.first_stage_weight, deadline_s)
        async with ready as stages:
            request = Request(query, passages, stages, options, deadline_s, usage)
            return at_least(await self._steps.rank(request), options)

    async def search(
        self,
        query: Query | str,
        first_stage: FirstStage | str,
        depth: int,
        options: RankOptions,
        deadline_s: float = math.inf,
        feedback: FeedbackSettings | FeedbackMethod | str | None = None,
        usage: CallUsage | None = None,
    ) -> SearchResult:
        """Retrieves `depth` candidates from the index and reranks them; with `feedback`, see FeedbackSearch.

        Args:
            query: a Query, or the text of one.
            first_stage: a FirstStage, or its name.
            depth: number of candidates.
            options, deadline_s, usage: see `rerank`.
            feedback: settings of relevance feedback, or the name of its method; None for none.

        Raises:
            InvalidRequest: the query is empty, a name is unknown, `feedback` is given for a first stage without a query
                vector or a model that cannot give it, or `options.ordered` is false.
            NotConfigured: there is no index.
            DeadlineExceeded: the deadline came in the first stage.
            RerankError: see `rerank`.
        """
        usage = usage or CallUsage()
        query, first_stage = Query.of(query), FirstStage.of("first_stage", first_stage)
        if not options.ordered:
            raise InvalidRequest("ordered", "the first stage of a search gives an ordered list; leave the option out")
        feedback = FeedbackSettings.of(feedback) if feedback is not None else None
        index = self._open_index()
        if feedback is not None and not first_stage.reads_vectors:
            problem = f"{first_stage} has no query vector to update; use dense or a hybrid first stage with it"
            raise InvalidRequest("feedback", f"{problem}, or no feedback")
        async with self._lazy.ready(options, query.instruction, FirstStageKind.AUTO, deadline_s) as stages:
            if feedback is not None and feedback.method is FeedbackMethod.E2RANK:
                self._check_makes_vectors(stages[-1].model)
            if feedback is not None and feedback.method is FeedbackMethod.CHAIN and len(stages) < 2:
                problem = f"the chain reads the scores of a cascade's preranker, and {stages[-1].model} ranks alone"
                raise InvalidRequest("feedback.method", f"{problem}; ask for the strategy cascade, or another method")

            async def retrieve(query: Query, deadline_s: float) -> tuple[Query, tuple[Passage, ...]]:
                try:
                    async with timeout_at(deadline_s):
                        work = partial(self._retrieve, index, first_stage, depth, query)
                        return await self._searches.call(usage.name, work)
                except TimeoutError as error:
                    problem = f"the deadline passed in the first stage ({first_stage.value}); allow more time"
                    raise DeadlineExceeded(problem) from error

            async def rank(found: tuple[Passage, ...], options: RankOptions, deadline_s: float) -> Ranking:
                of_found = replace(request, candidates=found, options=options, deadline_s=deadline_s)
                return await self._steps.rank(of_found)

            start_s = time.perf_counter()
            encoded, candidates = await retrieve(query, deadline_s)
            first_stage_ms = (time.perf_counter() - start_s) * 1000
            request = Request(encoded, candidates, stages, options, deadline_s, usage)
            if feedback is None:
                ranking, report = await self._steps.rank(request), None
            else:
                update = partial(self._searches.call, usage.name)
                feedback_search = FeedbackSearch(feedback, rank, retrieve, update)
                # `top_n` counts after results of too little relevance are dropped, so all are ranked first.
                all_ = options if options.min_relevance is None else replace(options, top_n=0)
                ranking, report = await feedback_search.run(encoded, candidates, all_, deadline_s)
        return SearchResult(at_least(ranking, options), first_stage, len(candidates), first_stage_ms, report)

    def _check_makes_vectors(self, model: str) -> None:
        """Raises: InvalidRequest if a model does not compute query vectors for the index, as E2Rank does."""
        makers = [name for name, info in self._models.infos.items() if info.kind == "e2rank" and info.needs_vectors]
        if model not in makers:
            way_out = (
                f"use {' or '.join(makers)}" if makers else "serve an E2Rank model as encoder and as ranker e2rank"
            )
            problem = f"model {model} makes no vector of a query and its passages that searches the index; {way_out}"
            raise InvalidRequest("feedback.method", f"{problem}, or another method", {"model": model})

    def _retrieve(
        self, index: Index, first_stage: FirstStage, depth: int, query: Query
    ) -> tuple[Query, tuple[Passage, ...]]:
        """The query with its vector and word table, and the candidates that the first stage finds for it."""
        query = index.with_word_table(query)
        encoded = self._encoder.with_vector(query) if first_stage.reads_vectors else query
        return encoded, index.candidates(first_stage, encoded, depth)

    async def _from_index(self, query: Query, candidates: Iterable[CandidateLike]) -> tuple[Query, tuple[Passage, ...]]:
        """The query, and the candidates as passages, with text and vector if they are in the index.

        If all candidates are in the index, the query gets the document frequencies of its stems in the index.
        """
        given, doc_ids = list[Passage](), list[str]()
        for position, candidate in enumerate(candidate_list(candidates)):
            given.append(candidate if isinstance(candidate, Passage) else passage_of(candidate, position))
            if given[-1].in_index:
                doc_ids.append(given[-1].doc_id)
        stored = dict[str, Passage]()
        if doc_ids:
            index = self._open_index()
            found = await self.convert(index.store.passages, doc_ids)
            stored = {passage.doc_id: passage for passage in found}
            if len(doc_ids) == len(given):
                query = await self.convert(index.with_word_table, query)
        for position, passage in enumerate(given):
            if passage.in_index or passage.title or not passage.is_as_sent:
                given[position] = _passage(passage, stored)
        return query, tuple(given)

    def _open_index(self) -> Index:
        if self.index is None:
            raise NotConfigured(
                "this service runs without an index; start it with --index DIR, or send the text of the passages"
            )
        return self.index


def load_reranker(config: ServiceConfig) -> AsyncReranker:
    """Downloads models from the hub, and loads the encoder, the index and the models of a configuration.

    Models that cannot be loaded or fail their self-test are not served.

    Raises:
        ConfigError: a setting cannot be used, or a model cannot be downloaded.
        CheckpointError: the encoder cannot be loaded, or none of the models can.
        IndexMismatch: the index was built with another encoder.
    """
    _use_one_thread_after_fork()
    config = download_models(config)
    loader, index = _load_encoders(config)
    return AsyncReranker(config, loader.encoder, index, load_models(config.models, loader), loader)


@cache
def _use_one_thread_after_fork() -> None:
    """Makes processes that are forked from this one compute with one thread.

    A fork has no OpenMP threads, and crashes without a message when it uses them.
    """

    def use_one_thread() -> None:
        torch.set_num_threads(1)
        log.info('this forked process computes with one thread; those that "spawn" starts compute with all')

    os.register_at_fork(after_in_child=use_one_thread)


def check_models(config: ServiceConfig) -> None:
    """Loads and tests the encoder, the index, and the models one by one.

    Raises:
        CheckpointError: some models cannot be loaded; the message names them, with the reasons.
        ConfigError, IndexMismatch: see `load_reranker`.
    """
    config = download_models(config)
    loader, _ = _load_encoders(config)
    problems = list[str]()
    for model in config.models:
        log.info("model %s (%s) is being loaded and tested", model.name, model.ranker)
        if isinstance(ranker := loader.load(model).ranker, FailedRanker):
            problems.append(f"model {model.name}: {ranker.problem}")
    if problems:
        raise CheckpointError("\n".join(problems))


def _load_encoders(config: ServiceConfig) -> tuple[ModelLoader, Index | None]:
    cache_bytes = config.engine.text_vector_cache_bytes
    log.info("encoder %s is being loaded", config.encoder.name)
    encoder = Encoder(config.encoder, config.device, cache_bytes)
    sparse_encoder = cache(partial(SparseEncoder, config.sparse_encoder, config.device, cache_bytes))
    if config.index:
        log.info("index %s is being opened", config.index)
    of_index = sparse_encoder if any(map(needs_sparse, config.models)) else None
    index = Index(config.index, encoder, of_index) if config.index else None
    return ModelLoader(encoder, config.device, sparse_encoder, config.max_load_s), index


def _passage(given: Passage, stored: dict[str, Passage]) -> Passage:
    """The passage that is ranked: its text begins with the title that the caller gives, if any.

    Args:
        stored: doc_id → passage of the index.
    """
    found = stored[given.doc_id] if given.in_index else None
    text = given.text or (found.text if found else "")
    titled = with_title(text, given.title) if given.title else text
    prefix_chars = len(titled) - len(text)
    if found is None:
        return Passage(given.doc_id, titled, given.score, given.title, prefix_chars=prefix_chars)
    return replace(found, text=titled, score=given.score, title=given.title, prefix_chars=prefix_chars)
